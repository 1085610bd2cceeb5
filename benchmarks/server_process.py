"""A server in a process of its own on this machine: started, waited for, and stopped for certain."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import aiohttp
import psutil

from benchmarks.errors import BenchmarkError, MeasurementError, SetupError
from benchmarks.process_log import ProcessLog
from benchmarks.process_memory import descendants, tree_peak_rss_bytes, tree_pss_bytes
from server.process_lifetime import bound_command

_READY_TIMEOUT = 600.0


class ServerProcess(ABC):
    """Dies with this process. Use it as a context manager; `stop` is the orderly end.

    stop_timeout: seconds from SIGTERM to its end at most.
    """

    ready_path = "/health"
    stop_timeout = 60.0

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        self._log = ProcessLog()
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            bound_command(command),
            stdin=subprocess.DEVNULL,
            stdout=self._log.file,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(variables or {}),
        )
        self.url = ""

    @abstractmethod
    def find_url(self) -> str | None:
        """Where it listens; None while that is not known."""

    def failure(self) -> BenchmarkError:
        """Why it ended before it was ready."""
        return MeasurementError(f"the server ended with status {self._process.returncode}{self._log.last_lines()}")

    async def wait_until_ready(self, session: aiohttp.ClientSession) -> float:
        """Seconds from its start to ready. Raises BenchmarkError when it ends instead, or takes too long."""
        while (elapsed := time.perf_counter() - self._started) < _READY_TIMEOUT:
            if self._process.poll() is not None:
                raise self.failure()
            if await self._is_ready(session):
                return elapsed
            await asyncio.sleep(0.1)
        raise SetupError(f"the server was not ready within {_READY_TIMEOUT:g} s{self._log.last_lines()}")

    def peak_rss_bytes(self) -> int:
        """Each process's own peak, added up: the server and its descendants. Shared pages count in each."""
        return tree_peak_rss_bytes(self._process.pid)

    def pss_bytes(self) -> int:
        """Resident memory now of the server and its descendants; a page that several map counts once in all."""
        return tree_pss_bytes(self._process.pid)

    def stop(self) -> float:
        """SIGTERM, and seconds until it was gone. Raises MeasurementError when it stays."""
        children = descendants(self._process.pid)
        started = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self.stop_timeout)
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(f"the server did not end within {self.stop_timeout:g} s of SIGTERM") from error
        seconds = time.perf_counter() - started
        _, alive = psutil.wait_procs(children, timeout=1)
        if alive:
            self.left_behind(alive)
        return seconds

    def left_behind(self, processes: Sequence[psutil.Process]) -> None:
        """Descendants that outlived it: they are killed."""
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:  # after stop() there is nothing left to kill
            for child in descendants(self._process.pid):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            self._process.kill()
        self._process.wait()
        self._log.close()

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        url = self.find_url()
        if url is None:
            return False
        self.url = url
        try:
            async with session.get(f"{url}{self.ready_path}") as reply:
                return reply.status == 200
        except aiohttp.ClientError:  # not yet bound, or it ends now
            return False

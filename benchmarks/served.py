"""A `megaserve serve` of the benchmark's own: started on a free port, waited for, and stopped for certain."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp
import psutil

from benchmarks.checkpoint import resolver_errors
from benchmarks.errors import MeasurementError, SetupError
from benchmarks.machine import peak_rss_bytes
from benchmarks.process_log import ProcessLog
from server.process_lifetime import bound_command

_READY_TIMEOUT = 600.0
_STOP_TIMEOUT = 15.0
"""An idle server ends within 5 s; beyond this it hangs."""


class ServedModel:
    """Dies with this process. Use it as a context manager; `stop` is the orderly end."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._log = ProcessLog()
        self._started = time.perf_counter()
        command = [sys.executable, "-m", "server", "--port", "0", *arguments]
        self._process = subprocess.Popen(
            bound_command(command), stdin=subprocess.DEVNULL, stdout=self._log.file, stderr=subprocess.STDOUT
        )
        self.url = ""

    async def wait_until_ready(self, session: aiohttp.ClientSession) -> float:
        """Seconds from its start to ready. Raises SetupError when it ends instead, or takes too long."""
        while (elapsed := time.perf_counter() - self._started) < _READY_TIMEOUT:
            if self._process.poll() is not None:
                raise SetupError(resolver_errors(self._log.text()))
            if await self._is_ready(session):
                return elapsed
            await asyncio.sleep(0.1)
        raise SetupError(f"the server was not ready within {_READY_TIMEOUT:g} s{self._log.last_lines()}")

    async def info(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """GET /server_info, of a server that is ready."""
        async with session.get(f"{self.url}/server_info") as reply:
            reply.raise_for_status()
            body: dict[str, Any] = await reply.json()
            return body

    def peak_rss_bytes(self) -> int:
        """Each process's own peak, added up: HTTP process, launcher and ranks. Shared pages count in each."""
        return sum(map(_peak_or_zero, [self._process.pid, *(child.pid for child in self._children())]))

    def stop(self) -> float:
        """SIGTERM, and seconds until it was gone. Raises MeasurementError when it or a child of it stays."""
        children = self._children()
        started = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise MeasurementError(f"the server did not end within {_STOP_TIMEOUT:g} s of SIGTERM") from error
        seconds = time.perf_counter() - started
        if status != 0:
            raise MeasurementError(f"the server ended with status {status} after SIGTERM{self._log.last_lines()}")
        _, alive = psutil.wait_procs(children, timeout=1)
        if alive:
            raise MeasurementError(f"the server left processes behind: {[process.pid for process in alive]}")
        return seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()  # its children are bound to it; after stop() there is nothing left to kill
        self._process.wait()
        self._log.close()

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        announced = re.search(r"listening on (http://\S+)", self._log.text())
        if announced is None:
            return False
        self.url = announced.group(1)
        try:
            async with session.get(f"{self.url}/health/ready") as reply:
                return reply.status == 200
        except aiohttp.ClientError:  # its port is bound, so it has ended, or ends now
            return False

    def _children(self) -> list[psutil.Process]:
        """All descendants."""
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:  # it ended by itself, and they with it
            return []


def _peak_or_zero(pid: int) -> int:
    try:
        return peak_rss_bytes(pid)
    except ProcessLookupError:  # ended since it was listed
        return 0

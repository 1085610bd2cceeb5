"""A `megaserve serve` of the benchmark's own, on a free port."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import aiohttp
import psutil

from benchmarks.checkpoint import resolver_errors
from benchmarks.errors import BenchmarkError, MeasurementError, SetupError
from benchmarks.server_process import ServerProcess


class ServedModel(ServerProcess):
    """HTTP process and ranks."""

    ready_path = "/health/ready"
    stop_timeout = 15.0  # idle it ends within 5 s; beyond this it hangs

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__([sys.executable, "-m", "server", "--port", "0", *arguments])

    def find_url(self) -> str | None:
        announced = re.search(r"listening on (http://\S+)", self._log.text())
        return announced and announced.group(1)

    def failure(self) -> BenchmarkError:
        return SetupError(resolver_errors(self._log.text()))

    async def info(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """GET /server_info, of a server that is ready."""
        async with session.get(f"{self.url}/server_info") as reply:
            reply.raise_for_status()
            body: dict[str, Any] = await reply.json()
            return body

    def stop(self) -> float:
        """As any server, and with status 0. Raises MeasurementError, also when a child of it stays."""
        seconds = super().stop()
        if self._process.returncode != 0:
            raise MeasurementError(
                f"the server ended with status {self._process.returncode} after SIGTERM{self._log.last_lines()}"
            )
        return seconds

    def left_behind(self, processes: Sequence[psutil.Process]) -> None:
        raise MeasurementError(f"the server left processes behind: {[process.pid for process in processes]}")

"""Keeps a group of ranks running: start, watch, tell everybody when it dies, start again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from server.config import ServerConfig
from server.errors import MegaserveError
from server.frontend.engine_client import EngineClient
from server.frontend.engine_connection import EngineConnection
from server.launch_group import RankGroup

logger = logging.getLogger(__name__)

StartGroup = Callable[[Path], Awaitable[RankGroup]]
"""Starts all ranks, told to connect to this socket file."""

_MAX_FIRST_STARTS = 3
_FIRST_DELAY = 0.5
_MAX_DELAY = 30.0
_STABLE_SECONDS = 30.0
_SHUTDOWN_GRACE = 1.5
"""Seconds ranks get to exit after they were asked to; then they are killed, for they hold nothing but memory."""
_CHECK_INTERVAL = 1.0


def socket_file_of_start(run_directory: Path, start: int) -> Path:
    """Each start, counted from 1, has its own, so that a dead group's late messages reach nobody."""
    return run_directory / f"engine-{start}.sock"


class StartFailedError(MegaserveError):
    """The ranks never came up, several times in a row: the cause will not go away by itself."""


class Supervisor:
    """Runs one group after another until told to stop.

    Restarts wait exponentially longer, from half a second to half a minute, as long as groups die young.
    """

    def __init__(self, client: EngineClient, start_group: StartGroup, run_directory: Path, config: ServerConfig):
        self._client = client
        self._start_group = start_group
        self._run_directory = run_directory
        self._config = config
        self._stop = asyncio.Event()
        self._was_ready = False
        self._num_young_deaths = 0

    async def run(self) -> None:
        """Returns after `stop`. Raises StartFailedError when no start has ever succeeded."""
        num_starts = 0
        while True:
            num_starts += 1
            reason = await self._run_group(socket_file_of_start(self._run_directory, num_starts))
            if reason is None:
                return
            if not self._was_ready and num_starts >= _MAX_FIRST_STARTS:
                raise StartFailedError(f"gave up after {num_starts} starts: {reason}")
            delay = min(_MAX_DELAY, _FIRST_DELAY * 2**self._num_young_deaths)
            self._num_young_deaths += 1
            logger.error("%s; starting the ranks again in %g s", reason, delay)
            if await self._stopped_within(delay):
                return
            self._client.num_restarts += 1

    def stop(self) -> None:
        """Let the group exit in order, and return from `run`."""
        self._stop.set()

    async def _run_group(self, socket_file: Path) -> str | None:
        """One group's life; why it ended, or None when it was stopped."""
        connection = self._client.open(socket_file)
        group = await self._start_group(socket_file)
        reason = None
        try:
            reason = await self._watch(connection, group)
            if reason is None and connection.ready.done():
                self._client.request_shutdown()
                await group.exited(_SHUTDOWN_GRACE)
        finally:
            await self._client.close(reason or "the server is shutting down", stopping=reason is None)
            await group.kill()
        return reason

    async def _watch(self, connection: EngineConnection, group: RankGroup) -> str | None:
        ended = asyncio.ensure_future(group.ended())
        stop = asyncio.ensure_future(self._stop.wait())
        watched: set[asyncio.Future[str] | asyncio.Future[bool]] = {ended, stop, connection.failed}  # type: ignore[arg-type]
        try:
            limit = self._config.startup_timeout
            await asyncio.wait({*watched, connection.ready}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not connection.ready.done() and not any(future.done() for future in watched):
                return f"the ranks did not load within {limit:g} s (--startup-timeout)"
            if connection.ready.done():
                self._start_serving(connection)
            since = time.monotonic()
            while not any(future.done() for future in watched):
                await asyncio.wait(watched, timeout=_CHECK_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
                stall = connection.stall(self._config.progress_timeout)
                if stall is not None:
                    return f"{stall} (--progress-timeout)"
                if time.monotonic() - since > _STABLE_SECONDS:
                    self._num_young_deaths = 0
            if connection.failed.done():
                return connection.failed.result()
            return None if stop.done() else ended.result()
        finally:
            ended.cancel()
            stop.cancel()

    def _start_serving(self, connection: EngineConnection) -> None:
        ready = connection.ready.result()
        self._was_ready = True
        self._client.mark_ready(ready)
        logger.info(
            "ready: %d ranks loaded in %.1f s, %d KV blocks of %d tokens, up to %d tokens in a sequence",
            len(ready.rank_pids),
            ready.load_seconds,
            ready.limits.num_blocks,
            ready.limits.block_size,
            ready.limits.max_model_len,
        )

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return False
        return True

"""A circuit breaker: while the server is down or not ready, nobody asks it anything but whether it is back."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from evaluation.errors import ServerLostError

READY_PATH = "/health/ready"
PROBE_TIMEOUT_SECONDS = 10.0
MAX_PROBE_DELAY_SECONDS = 5.0


async def probe_ready(session: aiohttp.ClientSession, server: str) -> str | None:
    """None when the server is ready, else the reason why not. Raises aiohttp.ClientError when it cannot be reached."""
    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_SECONDS)
    async with session.get(server + READY_PATH, timeout=timeout) as response:
        body = (await response.read())[:200].decode("utf-8", "replace")
        return None if response.status == 200 else f"{READY_PATH} answers {response.status}: {body}"


class ServerGate:
    """Open while the server is believed ready. `max_wait`: seconds until a closed gate gives the server up."""

    def __init__(self, session: aiohttp.ClientSession, server: str, max_wait: float) -> None:
        self._session = session
        self._server = server
        self._max_wait = max_wait
        self._open = asyncio.Event()
        self._open.set()
        self._probing: asyncio.Task[None] | None = None
        self._lost: str | None = None

    async def wait(self) -> None:
        """Return once the gate is open; ServerLostError when the server did not come back in time."""
        await self._open.wait()
        if self._lost is not None:
            raise ServerLostError(
                f"{self._server} was not ready for {self._max_wait:g} seconds ({self._lost}); "
                "the same command resumes the run once it is back"
            )

    def suspect(self) -> None:
        """Something went wrong: keep everybody waiting until a probe says that the server is ready."""
        if self._open.is_set() and self._lost is None:
            self._open.clear()
            self._probing = asyncio.create_task(self._probe_until_ready())

    def close(self) -> None:
        """Stop probing."""
        if self._probing:
            self._probing.cancel()

    async def _probe_until_ready(self) -> None:
        deadline = time.monotonic() + self._max_wait
        delay = 0.1
        while (reason := await self._reason_not_ready()) is not None:
            if time.monotonic() + delay > deadline:
                self._lost = reason
                break
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_PROBE_DELAY_SECONDS)
        self._open.set()

    async def _reason_not_ready(self) -> str | None:
        try:
            return await probe_ready(self._session, self._server)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{type(error).__name__}: {error}"

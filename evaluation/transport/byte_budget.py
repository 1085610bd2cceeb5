"""A limit on bytes under way: whoever would exceed it waits in line."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    """At most `limit` bytes are held at a time. One holder may exceed it, when it is alone: nothing waits for ever."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[None]:
        """Hold `count` bytes, first come first served. Nothing is waited for when `count` is 0."""
        if count and (self._waiting or not self._fits(count)):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((count, turn))
            try:
                await turn
            except asyncio.CancelledError:
                self._leave(count, turn)
                raise
        else:
            self._held += count
        try:
            yield
        finally:
            self._release(count)

    def _fits(self, count: int) -> bool:
        return not self._held or self._held + count <= self._limit

    def _release(self, count: int) -> None:
        self._held -= count
        while self._waiting and self._fits(self._waiting[0][0]):
            admitted, turn = self._waiting.popleft()
            if not turn.done():
                self._held += admitted
                turn.set_result(None)

    def _leave(self, count: int, turn: asyncio.Future[None]) -> None:
        """Cancelled while waiting, or after the turn had come but before it was taken."""
        if turn.done() and not turn.cancelled():
            self._release(count)
        elif (count, turn) in self._waiting:
            self._waiting.remove((count, turn))
            self._release(0)

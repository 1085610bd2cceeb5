"""The socket to one group of ranks, from binding it to the group's end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from server import ipc
from server.ipc import AbortRequests, AddRequests, EngineFailed, EngineReady, EngineStats, Heartbeat, StepOutputs
from server.request import EngineRequest

logger = logging.getLogger(__name__)


class EngineConnection:
    """Binds `socket_file`, sends in batches, and hands every step's outputs to `on_outputs` on the event loop.

    ready: resolved by the group's first message. failed: resolved with the reason when the group says that it gives
    up. last_message_time: monotonic seconds. Must be made and used on a running event loop.
    """

    def __init__(self, context: zmq.asyncio.Context, socket_file: Path, on_outputs: Callable[[StepOutputs], None]):
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[EngineReady] = loop.create_future()
        self.failed: asyncio.Future[str] = loop.create_future()
        self.stats = EngineStats()
        self.last_message_time = time.monotonic()
        self._on_outputs = on_outputs
        self._socket = context.socket(zmq.PAIR)
        ipc.configure(self._socket)
        self._socket.bind(ipc.address(socket_file))
        self._adds: list[EngineRequest] = []
        self._aborts: list[str] = []
        self._controls: list[ipc.ToEngine] = []
        self._outbox = asyncio.Event()
        self._tasks = [loop.create_task(self._receive()), loop.create_task(self._send())]

    def add(self, requests: list[EngineRequest]) -> None:
        """Queue sequences; what one turn of the event loop queues travels in one message."""
        self._adds += requests
        self._outbox.set()

    def abort(self, request_ids: list[str]) -> None:
        """Queue aborts; they follow the sequences queued before them."""
        self._aborts += request_ids
        self._outbox.set()

    def control(self, message: ipc.ToEngine) -> None:
        """Queue any other message."""
        self._controls.append(message)
        self._outbox.set()

    async def close(self, *, linger_seconds: float = 0) -> None:
        """Forget the group: nothing is received any more; what was sent gets `linger_seconds` to leave."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close(linger=int(linger_seconds * 1000))

    async def _receive(self) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                message = ipc.decode_from_engine(frame)
            except msgspec.DecodeError as error:
                self._fail(f"the ranks sent a message that cannot be read: {error}")
                return
            self.last_message_time = time.monotonic()
            self._handle(message)

    def _handle(self, message: ipc.FromEngine) -> None:
        match message:
            case StepOutputs():
                self.stats = message.stats
                self._on_outputs(message)
            case Heartbeat():
                self.stats = message.stats
            case EngineReady():
                if not self.ready.done():
                    self.ready.set_result(message)
            case EngineFailed():
                self._fail(message.reason)

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    async def _send(self) -> None:
        while True:
            await self._outbox.wait()
            self._outbox.clear()
            for message in self._take():
                with contextlib.suppress(zmq.ZMQError):  # the peer has gone; the supervisor tells everybody
                    await self._socket.send(ipc.encode(message))

    def _take(self) -> list[ipc.ToEngine]:
        messages: list[ipc.ToEngine] = []
        if self._adds:
            messages.append(AddRequests(self._adds))
        if self._aborts:
            messages.append(AbortRequests(self._aborts))
        messages += self._controls
        self._adds, self._aborts, self._controls = [], [], []
        return messages

"""The socket to one group of ranks, from binding it to the group's end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from server import ipc
from server.errors import EngineUnavailableError
from server.ipc import (
    AbortRequests,
    Control,
    ControlAction,
    ControlDone,
    EngineFailed,
    EngineReady,
    EngineStats,
    Heartbeat,
    StepOutputs,
    StepRecord,
)
from server.request import EngineRequest

logger = logging.getLogger(__name__)


class EngineConnection:
    """Binds `socket_file`, sends in batches, and hands every step's outputs to `on_outputs` on the event loop.

    ready: resolved by the group's first message. failed: resolved with the reason when the group says that it gives
    up, or when nothing can be sent or received any more. on_steps: told of every step. Must be made and used on a
    running event loop.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        socket_file: Path,
        on_outputs: Callable[[StepOutputs], None],
        on_steps: Callable[[list[StepRecord]], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[EngineReady] = loop.create_future()
        self.failed: asyncio.Future[str] = loop.create_future()
        self.stats = EngineStats()
        self._last_message_time = self._last_progress_time = time.monotonic()
        self._on_outputs = on_outputs
        self._on_steps = on_steps
        self._waiting_controls: dict[int, asyncio.Future[ControlDone]] = {}
        self._control_numbers = itertools.count(1)
        self._socket = context.socket(zmq.PAIR)
        ipc.configure(self._socket)
        self._socket.bind(ipc.address(socket_file))
        self._adds: list[bytes] = []
        self._aborts: list[str] = []
        self._controls: list[ipc.ToEngine] = []
        self._outbox = asyncio.Event()
        self._tasks = [loop.create_task(self._receive()), loop.create_task(self._send())]
        for task in self._tasks:
            task.add_done_callback(self._note_end)

    def add(self, requests: list[EngineRequest]) -> None:
        """Queue sequences; what one turn of the event loop queues travels in one message.

        Raises UnicodeEncodeError for text that cannot be sent; then none is queued.
        """
        self._adds += [ipc.encode_request(request) for request in requests]
        self._outbox.set()

    def abort(self, request_ids: list[str]) -> None:
        """Queue aborts; they follow the sequences queued before them."""
        self._aborts += request_ids
        self._outbox.set()

    async def control(self, action: ControlAction, num_steps: int = 0) -> str:
        """Have the group do something between two steps, and wait for it -> why it did not, or nothing.

        Raises EngineUnavailableError when the group goes away first.
        """
        number = next(self._control_numbers)
        done: asyncio.Future[ControlDone] = asyncio.get_running_loop().create_future()
        self._waiting_controls[number] = done
        self._post(Control(number, action, num_steps))
        try:
            return (await done).error
        finally:
            del self._waiting_controls[number]

    def request_shutdown(self) -> None:
        """Ask the ranks to exit in order."""
        self._post(ipc.Shutdown())

    def stall(self, seconds: float) -> str | None:
        """In which way the group stands still, if it does for this long.

        It owes a message every second or step; and while sequences wait, steps that compute tokens.
        """
        now = time.monotonic()
        if now - self._last_message_time > seconds:
            return f"no sign of life from the ranks for {now - self._last_message_time:.0f} s"
        if now - self._last_progress_time > seconds:
            waiting = self.stats.num_running + self.stats.num_waiting
            return f"{waiting} sequences wait, but no step was run for {now - self._last_progress_time:.0f} s"
        return None

    def _post(self, message: ipc.ToEngine) -> None:
        self._controls.append(message)
        self._outbox.set()

    async def close(self, *, linger_seconds: float = 0) -> None:
        """Forget the group: nothing is received any more; what was sent gets `linger_seconds` to leave."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for waiting in self._waiting_controls.values():
            if not waiting.done():
                waiting.set_exception(EngineUnavailableError("the ranks went away before they could answer"))
        self._socket.close(linger=int(linger_seconds * 1000))

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Neither task ends by itself: without it no request would be answered any more."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.error("the connection to the ranks failed", exc_info=error)
        self._fail(f"the connection to the ranks failed ({type(error).__name__})")

    async def _receive(self) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                message = ipc.decode_from_engine(frame)
            except msgspec.DecodeError as error:
                self._fail(f"the ranks sent a message that cannot be read: {error}")
                return
            self._last_message_time = time.monotonic()
            self._handle(message)

    def _handle(self, message: ipc.FromEngine) -> None:
        match message:
            case StepOutputs():
                self._take_stats(message.stats, message.steps)
                self._on_outputs(message)
            case Heartbeat():
                self._take_stats(message.stats, message.steps)
            case ControlDone():
                waiting = self._waiting_controls.get(message.control_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case EngineReady():
                self._last_progress_time = time.monotonic()
                num_blocks = message.limits.num_blocks
                self.stats = EngineStats(num_blocks=num_blocks, num_free_blocks=num_blocks)  # until the first message
                if not self.ready.done():
                    self.ready.set_result(message)
            case EngineFailed():
                self._fail(message.reason)

    def _take_stats(self, stats: EngineStats, steps: list[StepRecord]) -> None:
        # A grammar compiles without any step; how long it may take is bounded where that is done.
        has_work = stats.num_running + stats.num_waiting > stats.num_compiling and not stats.is_paused
        if stats.num_steps != self.stats.num_steps or not has_work:
            self._last_progress_time = time.monotonic()
        self.stats = stats
        self._on_steps(steps)

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    async def _send(self) -> None:
        while True:
            await self._outbox.wait()
            self._outbox.clear()
            for frame in self._take():
                with contextlib.suppress(zmq.ZMQError):  # the peer has gone; the supervisor tells everybody
                    await self._socket.send(frame)

    def _take(self) -> list[bytes]:
        frames = []
        if self._adds:
            frames.append(ipc.join_requests(self._adds))
        if self._aborts:
            frames.append(ipc.encode(AbortRequests(self._aborts)))
        frames += map(ipc.encode, self._controls)
        self._adds, self._aborts, self._controls = [], [], []
        return frames

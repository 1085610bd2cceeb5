"""Rank 0's loop: messages from the HTTP process in, steps, outputs back."""

from __future__ import annotations

import time

import msgspec
import zmq

from server.engine.engine import Engine
from server.engine.profiler import RankProfiler
from server.engine.step_plan import StepKind
from server.ipc import (
    AbortRequests,
    AddRequests,
    Control,
    ControlDone,
    EngineStats,
    FromEngine,
    Heartbeat,
    Shutdown,
    StepOutputs,
    decode_to_engine,
    encode,
)
from server.request import RequestOutput

# Between signs of life while there is nothing to do, to the HTTP process and to the other ranks.
_HEARTBEAT_SECONDS = 1.0


class Leader:
    """Drains the socket between steps, so an abort or a new request waits for one step at most."""

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes], profiler: RankProfiler) -> None:
        self._engine = engine
        self._socket = socket
        self._profiler = profiler
        self._profile_steps_left = 0
        self._paused = False
        self._stopping = False
        self._last_sent = self._last_signal = time.monotonic()

    def run(self) -> None:
        """Until a Shutdown message comes."""
        while True:
            outputs = self._receive()
            if self._stopping:
                self._engine.signal(StepKind.STOP)
                return
            stepped = self._has_work
            if stepped:
                outputs += self._engine.step()
                self._last_signal = time.monotonic()
                self._count_profiled_step()
            self._report(outputs, stepped)

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work and not self._paused

    def _report(self, outputs: list[RequestOutput], stepped: bool) -> None:
        """Tell what a step did, or that it had no outputs; without steps give a sign of life when one is due."""
        now = time.monotonic()
        if outputs:
            self._send(StepOutputs(outputs, self._stats(), self._engine.take_records()))
        elif stepped or now - self._last_sent >= _HEARTBEAT_SECONDS:
            # A leak would end in a deadlock much later; here it costs nobody a request to start anew.
            assert self._engine.has_work or self._engine.num_held_blocks == 0, "idle, and KV blocks are held"
            self._send(Heartbeat(self._stats(), self._engine.take_records()))
        if now - self._last_signal >= _HEARTBEAT_SECONDS:
            self._engine.signal(StepKind.IDLE)
            self._last_signal = now

    def _receive(self) -> list[RequestOutput]:
        """Handle all messages that are there; while idle, wait for one. Returns answers to refused requests."""
        refused: list[RequestOutput] = []
        if not self._has_work:
            self._socket.poll(int(_HEARTBEAT_SECONDS * 1000))
        while self._socket.poll(0):
            refused += self._handle(self._socket.recv())
        return refused

    def _handle(self, frame: bytes) -> list[RequestOutput]:
        match decode_to_engine(frame):
            case AddRequests(requests):
                return self._engine.add(requests)
            case AbortRequests(request_ids):
                self._engine.abort(request_ids)
            case Control() as control:
                error = self._control(control)
                self._send(Heartbeat(self._stats(), self._engine.take_records()))
                self._send(ControlDone(control.control_id, error))
            case Shutdown():
                self._stopping = True
        return []

    def _control(self, control: Control) -> str:
        """Carry it out -> why it cannot be, or nothing."""
        match control.action:
            case "flush_cache":
                self._engine.flush_prefix_cache()
            case "pause":
                self._paused = True
            case "resume":
                self._paused = False
            case "start_profile" if self._profiler.is_running:
                return "a profile is being recorded already; /stop_profile ends it"
            case "start_profile":
                self._engine.signal(StepKind.START_PROFILE)
                self._profiler.start()
                self._profile_steps_left = control.num_steps
            case "stop_profile" if not self._profiler.is_running:
                return "no profile is being recorded; it may have ended after its number of steps"
            case "stop_profile":
                return self._stop_profile()
        return ""

    def _count_profiled_step(self) -> None:
        if self._profiler.is_running:
            self._profile_steps_left -= 1
            if self._profile_steps_left <= 0:
                self._stop_profile()

    def _stop_profile(self) -> str:
        self._engine.signal(StepKind.STOP_PROFILE)
        return self._profiler.stop()

    def _stats(self) -> EngineStats:
        stats = self._engine.stats()
        return msgspec.structs.replace(stats, is_paused=self._paused, is_profiling=self._profiler.is_running)

    def _send(self, message: FromEngine) -> None:
        self._socket.send(encode(message))
        self._last_sent = time.monotonic()

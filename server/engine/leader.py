"""Rank 0's loop: messages from the HTTP process in, steps, outputs back."""

from __future__ import annotations

import zmq

from server.engine.engine import Engine
from server.engine.step_plan import StepKind
from server.ipc import (
    AbortRequests,
    AddRequests,
    FlushPrefixCache,
    Heartbeat,
    Shutdown,
    StepOutputs,
    decode_to_engine,
    encode,
)
from server.request import RequestOutput

# Milliseconds between signs of life while there is nothing to do, to the HTTP process and to the other ranks.
_HEARTBEAT_MS = 1000


class Leader:
    """Drains the socket between steps, so an abort or a new request waits for one step at most."""

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes]) -> None:
        self._engine = engine
        self._socket = socket
        self._stopping = False

    def run(self) -> None:
        """Until a Shutdown message comes."""
        while True:
            outputs = self._receive()
            if self._stopping:
                self._engine.signal(StepKind.STOP)
                return
            if self._engine.has_work:
                outputs += self._engine.step()
            if outputs:
                self._socket.send(encode(StepOutputs(outputs, self._engine.stats())))

    def _receive(self) -> list[RequestOutput]:
        """Handle all messages that are there; while idle, wait for one. Returns answers to refused requests."""
        refused: list[RequestOutput] = []
        if not self._engine.has_work and not self._socket.poll(_HEARTBEAT_MS):
            self._engine.signal(StepKind.IDLE)
            self._socket.send(encode(Heartbeat(self._engine.stats())))
        while self._socket.poll(0):
            refused += self._handle(self._socket.recv())
        return refused

    def _handle(self, frame: bytes) -> list[RequestOutput]:
        match decode_to_engine(frame):
            case AddRequests(requests):
                return self._engine.add(requests)
            case AbortRequests(request_ids):
                self._engine.abort(request_ids)
            case FlushPrefixCache():
                self._engine.flush_prefix_cache()
            case Shutdown():
                self._stopping = True
        return []

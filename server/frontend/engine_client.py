"""The engine as the frontend sees it: sequences go in, outputs come out, over as many groups of ranks as it takes.

Every sequence that was added gets an end: a finishing output, an error, or the abort its owner asked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import zmq.asyncio

from server.errors import EngineUnavailableError, MegaserveError, OverloadedError, RequestFailedError
from server.frontend.engine_connection import EngineConnection
from server.ipc import EngineLimits, EngineReady, EngineStats, FlushPrefixCache, Shutdown, StepOutputs
from server.request import EngineRequest, RequestOutput

logger = logging.getLogger(__name__)

Phase = Literal["loading", "ready", "restarting", "stopped"]


class OutputSink(Protocol):
    """Who waits for a sequence. Both methods are called on the event loop and must not block."""

    def put(self, output: RequestOutput) -> None:
        """What a step did to the sequence."""

    def fail(self, error: MegaserveError) -> None:
        """There will be no more outputs."""


class Readiness(NamedTuple):
    """Whether requests are taken, in one word, and why not."""

    status: str
    reason: str

    @property
    def is_ready(self) -> bool:
        return self.status == "ready"


class EngineClient:
    """Adds and aborts sequences, and knows how the ranks are. Lives on one event loop.

    The supervisor calls `open`, `mark_ready` and `close` as groups come and go; routes call the rest.
    max_silence: seconds without a message (one is due every second or step) after which readiness is withdrawn.
    """

    def __init__(self, max_queued_requests: int, max_silence: float) -> None:
        self._max_queued_requests = max_queued_requests
        self._max_silence = max_silence
        self._context = zmq.asyncio.Context()
        self._connection: EngineConnection | None = None
        self._sinks: dict[str, OutputSink] = {}
        self._ready: EngineReady | None = None
        self._phase: Phase = "loading"
        self._reason = "the ranks are starting"
        self._draining = False
        self.num_restarts = 0

    @property
    def num_in_flight(self) -> int:
        """Sequences added and not finished."""
        return len(self._sinks)

    @property
    def ready_info(self) -> EngineReady | None:
        """What the current group reported, None while there is none."""
        return self._ready

    @property
    def stats(self) -> EngineStats:
        """The latest counters; zeros before the first message."""
        return self._connection.stats if self._connection else EngineStats()

    @property
    def limits(self) -> EngineLimits:
        """Raises EngineUnavailableError while there is no group to take requests."""
        self._check_available()
        assert self._ready is not None
        return self._ready.limits

    def readiness(self) -> Readiness:
        """The state shown by /health/ready."""
        if self._draining:
            return Readiness("draining", "the server is shutting down and takes no new requests")
        if self._phase == "ready" and self._connection is not None:
            silence = time.monotonic() - self._connection.last_message_time
            if silence > self._max_silence:
                return Readiness("no_progress", f"no sign of life from the ranks for {silence:.0f} s")
        return Readiness(self._phase, self._reason)

    def add(self, requests: Sequence[EngineRequest], sinks: Sequence[OutputSink]) -> None:
        """Send sequences. Raises EngineUnavailableError, or OverloadedError when too many are in flight."""
        self._check_available()
        if self.num_in_flight + len(requests) > self._max_queued_requests:
            raise OverloadedError(
                f"{self.num_in_flight} sequences are in flight and this request has {len(requests)}, together more "
                f"than --max-queued-requests {self._max_queued_requests}; try again later"
            )
        assert self._connection is not None
        for request, sink in zip(requests, sinks, strict=True):
            self._sinks[request.request_id] = sink
        self._connection.add(list(requests))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget sequences, here and in the engine. Finished and unknown ones are ignored."""
        known = [request_id for request_id in request_ids if self._sinks.pop(request_id, None) is not None]
        if known and self._connection is not None:
            self._connection.abort(known)

    def flush_prefix_cache(self) -> None:
        """Forget cached blocks. Raises EngineUnavailableError."""
        self._check_available()
        assert self._connection is not None
        self._connection.control(FlushPrefixCache())

    def start_draining(self) -> None:
        """Take no new sequences from now on."""
        self._draining = True

    def open(self, socket_file: Path) -> EngineConnection:
        """Listen for a new group of ranks."""
        assert self._connection is None, "the previous group is still connected"
        self._connection = EngineConnection(self._context, socket_file, self._deliver)
        return self._connection

    def mark_ready(self, ready: EngineReady) -> None:
        """The group takes requests from now on."""
        self._ready, self._phase, self._reason = ready, "ready", ""

    async def close(self, reason: str, *, stopping: bool = False) -> None:
        """The group is gone: every pending sequence gets an error, at once, and new ones are refused."""
        connection, self._connection = self._connection, None
        self._ready = None
        self._phase, self._reason = ("stopped" if stopping else "restarting"), reason
        self.fail_pending(EngineUnavailableError(reason))
        if connection is not None:
            await connection.close()

    def fail_pending(self, error: MegaserveError) -> None:
        """End every sequence in flight with this error, here and in the engine."""
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.fail(error)
        if self._connection is not None and sinks:
            self._connection.abort(list(sinks))

    def terminate(self) -> None:
        """Give the socket library's thread back; the last call."""
        self._context.destroy(linger=0)

    def request_shutdown(self) -> None:
        """Ask the ranks to exit in order."""
        if self._connection is not None:
            self._connection.control(Shutdown())

    def _check_available(self) -> None:
        if self._draining or self._phase != "ready":
            raise EngineUnavailableError(self.readiness().reason)

    def _deliver(self, step: StepOutputs) -> None:
        for output in step.outputs:
            if output.finish_reason is None:
                sink = self._sinks.get(output.request_id)
            else:
                sink = self._sinks.pop(output.request_id, None)
            if sink is None:
                continue  # aborted while this output was on its way
            if output.finish_reason == "error":
                sink.fail(RequestFailedError(output.error or "the engine could not finish this request"))
            else:
                sink.put(output)

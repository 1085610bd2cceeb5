"""The engine as the frontend sees it: sequences go in, outputs come out, over as many groups of ranks as it takes.

Every sequence that was added gets an end: a finishing output, an error, or the abort its owner asked for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import zmq.asyncio

from server.errors import EngineUnavailableError, MegaserveError, OverloadedError, RequestError, RequestFailedError
from server.frontend.engine_connection import EngineConnection
from server.ipc import ControlAction, EngineLimits, EngineReady, EngineStats, StepOutputs, StepRecord
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


class EngineObserver(Protocol):
    """Who keeps figures about the engine. Methods are called on the event loop and must not block."""

    def take_steps(self, steps: Sequence[StepRecord]) -> None:
        """Steps that were run."""

    def take_token_gap(self, seconds: float, num_tokens: int) -> None:
        """So long after its tokens before, a sequence got these."""


@dataclass
class _Flight:
    """A sequence in flight. last_token_time: monotonic seconds, None before the first token."""

    sink: OutputSink
    last_token_time: float | None = None


class EngineClient:
    """Adds and aborts sequences, and knows how the ranks are. Lives on one event loop.

    The supervisor calls `open`, `mark_ready` and `close` as groups come and go; routes call the rest.
    max_silence: seconds without a message, or without progress on waiting work, after which readiness is withdrawn.
    observer: told of steps and tokens, if there is one. was_ready: set when a group was ready for the first time.
    """

    def __init__(self, max_queued_requests: int, max_silence: float) -> None:
        self._max_queued_requests = max_queued_requests
        self._max_silence = max_silence
        self._context = zmq.asyncio.Context()
        self._connection: EngineConnection | None = None
        self._flights: dict[str, _Flight] = {}
        self._ready: EngineReady | None = None
        self._phase: Phase = "loading"
        self._reason = "the ranks are starting"
        self._draining = False
        self.num_restarts = 0
        self.observer: EngineObserver | None = None
        self.was_ready = asyncio.Event()

    @property
    def num_in_flight(self) -> int:
        """Sequences added and not finished."""
        return len(self._flights)

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
            stall = self._connection.stall(self._max_silence)
            if stall is not None:
                return Readiness("no_progress", stall)
            if self._connection.stats.is_paused:
                return Readiness("paused", "an operator paused the engine; POST /resume lets it go on")
        return Readiness(self._phase, self._reason)

    def check_can_add(self, num_sequences: int) -> None:
        """Raises EngineUnavailableError, or OverloadedError when too many would be in flight."""
        self._check_available()
        if self.num_in_flight + num_sequences > self._max_queued_requests:
            raise OverloadedError(
                f"{self.num_in_flight} sequences are in flight and this request has {num_sequences}, together more "
                f"than --max-queued-requests {self._max_queued_requests}; try again later"
            )

    def add(self, requests: Sequence[EngineRequest], sinks: Sequence[OutputSink]) -> None:
        """Send sequences. Raises as `check_can_add` does, and UnicodeEncodeError for text that cannot be sent."""
        self.check_can_add(len(requests))
        assert self._connection is not None
        self._connection.add(list(requests))
        for request, sink in zip(requests, sinks, strict=True):
            self._flights[request.request_id] = _Flight(sink)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget sequences, here and in the engine. Finished and unknown ones are ignored."""
        known = [request_id for request_id in request_ids if self._flights.pop(request_id, None) is not None]
        if known and self._connection is not None:
            self._connection.abort(known)

    async def control(self, action: ControlAction, num_steps: int = 0) -> None:
        """Have the ranks act, see `ipc.Control`, and wait for it.

        Raises EngineUnavailableError, and RequestError (409) when what was asked for is impossible now.
        """
        self._check_available()
        assert self._connection is not None
        error = await self._connection.control(action, num_steps)
        if error:
            raise RequestError(error, status=409)

    def start_draining(self) -> None:
        """Take no new sequences from now on."""
        self._draining = True

    def open(self, socket_file: Path) -> EngineConnection:
        """Listen for a new group of ranks."""
        assert self._connection is None, "the previous group is still connected"
        self._connection = EngineConnection(self._context, socket_file, self._deliver, self._take_steps)
        return self._connection

    def mark_ready(self, ready: EngineReady) -> None:
        """The group takes requests from now on."""
        self._ready, self._phase, self._reason = ready, "ready", ""
        self.was_ready.set()

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
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            flight.sink.fail(error)
        if self._connection is not None and flights:
            self._connection.abort(list(flights))

    def terminate(self) -> None:
        """Give the socket library's thread back; the last call."""
        self._context.destroy(linger=0)

    def request_shutdown(self) -> None:
        """Ask the ranks to exit in order."""
        if self._connection is not None:
            self._connection.request_shutdown()

    def _check_available(self) -> None:
        if self._draining or self._phase != "ready":
            raise EngineUnavailableError(self.readiness().reason)

    def _deliver(self, step: StepOutputs) -> None:
        now = time.monotonic()
        for output in step.outputs:
            if output.finish_reason is None:
                flight = self._flights.get(output.request_id)
            else:
                flight = self._flights.pop(output.request_id, None)
            if flight is None:
                continue  # aborted while this output was on its way
            if output.finish_reason == "error":
                flight.sink.fail(_error_of(output))
                continue
            if output.token_ids:
                self._note_tokens(flight, len(output.token_ids), now)
            try:
                flight.sink.put(output)
            except Exception:  # whatever it is, the other sequences have no part in it
                logger.exception("an output of sequence %s could not be processed", output.request_id)
                self.abort([output.request_id])
                flight.sink.fail(RequestFailedError("the answer could not be processed; the server's log says why"))

    def _note_tokens(self, flight: _Flight, num_tokens: int, now: float) -> None:
        if self.observer is not None and flight.last_token_time is not None:
            self.observer.take_token_gap(now - flight.last_token_time, num_tokens)
        flight.last_token_time = now

    def _take_steps(self, steps: list[StepRecord]) -> None:
        if self.observer is not None:
            self.observer.take_steps(steps)


def _error_of(output: RequestOutput) -> MegaserveError:
    message = output.error or "the engine could not finish this request"
    if output.invalid_field is not None:
        return RequestError(message, field=output.invalid_field)
    return OverloadedError(message) if output.is_overload else RequestFailedError(message)

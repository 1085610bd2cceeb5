"""Sending: JSON replies and server-sent events, and stopping the work when the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.error_replies import error_reply
from server.errors import MegaserveError
from server.frontend.generation import Generation
from server.frontend.sample import Sample

logger = logging.getLogger(__name__)

_CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody reads it, the access log shows it

_encoder = msgspec.json.Encoder()


class EventEncoder(Protocol):
    """A dialect's events, as JSON values."""

    is_openai: bool

    def first(self) -> Iterable[Any]:
        """Before any token."""

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        """For samples with something new."""

    def last(self) -> Iterable[Any]:
        """After the last token, before [DONE]."""


class JsonReply(Response):
    """A JSON reply; NaN becomes null, so the body is always valid JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)


async def finished(request: Request, generation: Generation) -> list[Sample] | None:
    """Wait for all samples, and close; None when the client went away first (the rest is aborted)."""
    work = asyncio.ensure_future(generation.finished())
    try:
        await _first_of(work, _disconnected(request.receive))
        return work.result() if work.done() else None
    finally:
        await _cancel(work)
        generation.close()


def gone() -> Response:
    """The reply to a client that is not there any more."""
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


class EventStream(Response):
    """Server-sent events for a started generation, `data: [DONE]` last.

    An error after the start is an event too, because the status has been sent by then.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, encoder: EventEncoder) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._events = encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(send))
        try:
            await _first_of(pump, _disconnected(receive))
            if pump.done():
                pump.result()
        finally:
            await _cancel(pump)
            self._generation.close()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await self._send(send, self._events.first())
            async for changed in self._generation.changes():
                await self._send(send, self._events.events(changed))
            await self._send(send, self._events.last())
        except MegaserveError as error:
            await self._send(send, [error_reply(error).as_json(openai=self._events.is_openai)])
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def _send(self, send: Send, events: Iterable[Any]) -> None:
        body = b"".join(b"data: " + _encoder.encode(event) + b"\n\n" for event in events)
        if body:
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def _first_of(work: asyncio.Future[Any], watch: Coroutine[Any, Any, None]) -> None:
    watcher = asyncio.ensure_future(watch)
    try:
        await asyncio.wait({work, watcher}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel(watcher)


async def _cancel(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _disconnected(receive: Receive) -> None:
    """Returns when the client has gone; the body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass

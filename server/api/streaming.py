"""Sending: JSON replies and server-sent events, and stopping the work when the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from server.api.error_replies import error_reply
from server.errors import MegaserveError
from server.frontend.generation import Generation
from server.frontend.sample import Sample

logger = logging.getLogger(__name__)

_CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody reads it, the access log shows it

_encoder = msgspec.json.Encoder()


class Framing(NamedTuple):
    """How events lie on the wire: each between `before` and `after`, and `end` behind the last one."""

    media_type: str
    before: bytes
    after: bytes
    end: bytes = b""


SERVER_SENT_EVENTS = Framing("text/event-stream", b"data: ", b"\n\n", b"data: [DONE]\n\n")
JSON_LINES = Framing("application/x-ndjson", b"", b"\n")


class EventEncoder(Protocol):
    """A dialect's events, as JSON values. is_openai: whose shape an error in the middle of the stream has."""

    is_openai: bool

    def first(self) -> Iterable[Any]:
        """Before any token."""

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        """For samples with something new."""

    def last(self) -> Iterable[Any]:
        """After the last token."""


class Replies(EventEncoder, Protocol):
    """A dialect's replies, whole or as events."""

    def body(self, samples: Sequence[Sample]) -> Any:
        """The whole reply of a request without `stream`."""


class JsonReply(Response):
    """A JSON reply; NaN becomes null, so the body is always valid JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)


async def respond(
    request: Request,
    generation: Generation,
    replies: Replies,
    *,
    stream: bool,
    headers: Mapping[str, str] | None = None,
    framing: Framing = SERVER_SENT_EVENTS,
) -> Response:
    """What a generating route does last: answer a started generation, whole or as a stream."""
    if stream:
        return EventStream(generation, replies, headers=headers, framing=framing)
    return await respond_whole(request, generation, replies.body, headers=headers)


async def respond_whole(
    request: Request,
    generation: Generation,
    body: Callable[[list[Sample]], Any],
    *,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Answer a started generation once it is done, by what `body` makes of its samples."""
    samples = await finished(request, generation)
    if samples is None:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)
    return JsonReply(body(samples), headers=headers)


async def finished(request: Request, generation: Generation) -> list[Sample] | None:
    """Wait for all samples, and close; None when the client went away first (the rest is aborted)."""
    work = asyncio.ensure_future(generation.finished())
    try:
        await _first_of(work, _disconnected(request.receive))
        return work.result() if work.done() else None
    finally:
        await _cancel(work)
        generation.close()


class EventStream(Response):
    """The events of a started generation, as they come.

    An error after the start is an event too, because the status has been sent by then; a refusal comes before it.
    A client that stops reading is waited for until the request's deadline.
    """

    def __init__(
        self,
        generation: Generation,
        encoder: EventEncoder,
        *,
        headers: Mapping[str, str] | None = None,
        framing: Framing = SERVER_SENT_EVENTS,
    ) -> None:
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})},
            media_type=framing.media_type,
        )
        del self.headers["content-length"]
        self._generation = generation
        self._events = encoder
        self._framing = framing

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
        await self._generation.accepted()

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout_at(self._generation.deadline):
                await send(message)

        try:
            await self._send_all(send_in_time)
        except TimeoutError:
            logger.warning("a client did not read its stream in time (--request-timeout); its request is aborted")

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await self._send(send, self._events.first())
            async for changed in self._generation.changes():
                await self._send(send, self._events.events(changed))
            await self._send(send, self._events.last())
        except MegaserveError as error:
            await self._send(send, [error_reply(error).as_json(openai=self._events.is_openai)])
        await send({"type": "http.response.body", "body": self._framing.end, "more_body": False})

    async def _send(self, send: Send, events: Iterable[Any]) -> None:
        framing = self._framing
        body = b"".join(framing.before + _encoder.encode(event) + framing.after for event in events)
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

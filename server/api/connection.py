"""One client's connection: uvicorn's, with headers bounded in number, size and time."""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from server.api.error_replies import ErrorReply

logger = logging.getLogger(__name__)

_HEADER_SECONDS = 30.0
"""For a request's line and headers to arrive; a connection that trickles bytes is not kept for ever."""


class _RefusedHeadersError(Exception):
    """Ends the parser's work on this connection."""


class BoundedConnection(HttpToolsProtocol):
    """Refuses headers (431) before anything is done for the request. Use through `bounded_connection`."""

    max_headers: ClassVar[int]
    max_header_bytes: ClassVar[int]

    _deadline: asyncio.TimerHandle | None = None
    _in_headers = False
    _may_be_in_trailers = False
    _num_header_bytes = 0
    _refusal: ErrorReply | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        began_in_trailers = self._may_be_in_trailers  # otherwise the data may begin with a part of the body
        super().data_received(data)
        is_unfinished = self._in_headers or (began_in_trailers and self._may_be_in_trailers)
        if is_unfinished and not self.transport.is_closing():
            self._num_header_bytes += len(data)
            if self._num_header_bytes > self.max_header_bytes:
                self._refusal = self._too_large(self._num_header_bytes)
                self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._num_header_bytes = 0
        self._set_deadline()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if not self._in_headers:  # a trailer, after the chunks of a body
            self._check_headers()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._cancel_deadline()
        self._check_headers()
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Called by the parser after a chunk's size; the last chunk has no body, and trailers may follow."""
        self._may_be_in_trailers = True

    def on_body(self, body: bytes) -> None:
        self._may_be_in_trailers = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._may_be_in_trailers = False
        super().on_message_complete()

    def _check_headers(self) -> None:
        """Raises _RefusedHeadersError."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.max_header_bytes:
            self._refusal = self._too_large(size)
        elif len(self.headers) > self.max_headers:
            message = f"the request has {len(self.headers)} headers, more than --max-headers {self.max_headers}"
            self._refusal = ErrorReply(431, "too_large", message)
        if self._refusal is not None:
            raise _RefusedHeadersError

    def send_400_response(self, msg: str) -> None:
        """What the parser could not read, or we refused, answered in JSON; the connection ends."""
        reply = self._refusal or ErrorReply(400, "invalid_request", "this is not HTTP/1.1")
        logger.warning("refused: %s", reply.message)
        body = msgspec.json.encode(reply.as_json(openai=False))
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[reply.status] + head + body)
        self.transport.close()

    def _too_large(self, size: int) -> ErrorReply:
        message = f"request line and headers have {size} bytes or more, --max-header-kb allows {self.max_header_bytes}"
        return ErrorReply(431, "too_large", message)

    def _set_deadline(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def bounded_connection(max_headers: int, max_header_bytes: int) -> type[BoundedConnection]:
    """The class for uvicorn, which makes the instances."""
    limits = {"max_headers": max_headers, "max_header_bytes": max_header_bytes}
    return type("BoundedConnection", (BoundedConnection,), limits)

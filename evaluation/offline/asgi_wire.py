"""Requests to the server's application in this process (ASGI 3.0): its routes and checks, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers

from evaluation.errors import PreflightError
from evaluation.transport.wire import RawReply

type Message = MutableMapping[str, Any]
type Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class AsgiWire:
    """Asks one application. name: in messages."""

    def __init__(self, application: Application, name: str) -> None:
        self._application = application
        self.name = name

    async def post(self, path: str, body: bytes, request_id: str) -> RawReply:
        """One request and its whole reply."""
        headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
        return await self._request("POST", path, headers, body)

    async def get_json(self, path: str) -> Any:
        """What a route answers to GET. Raises PreflightError when that is no success."""
        reply = await self._request("GET", path, [], b"")
        if reply.status != 200:
            raise PreflightError(f"{path} answers {reply.status}: {reply.body[:300].decode(errors='replace')}")
        return json.loads(reply.body)

    async def _request(self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> RawReply:
        exchange = _Exchange(body)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
            "client": None, "server": None,
        }  # fmt: skip
        try:
            await self._application(scope, exchange.receive, exchange.send)
        except Exception:
            # The application answers 500 to what it did not foresee, logs it, and raises it again for its server.
            if exchange.status is None:
                raise
        assert exchange.status is not None
        return RawReply(exchange.status, Headers(raw=exchange.headers), b"".join(exchange.chunks))


class _Exchange:
    """One request as the application sees it; the client stays connected until it has its reply."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.chunks: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()  # what comes next is that the client goes, and it does not
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message.get("headers", ()))
        else:
            self.chunks.append(message.get("body", b""))

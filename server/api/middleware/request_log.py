"""Gives every request an id and one line in the log."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.metrics import ServerMetrics
from server.log_format import request_id

logger = logging.getLogger("server.access")

_ACCEPTABLE_ID = re.compile(r"[!-~]{1,128}")
_QUIET_PATHS = frozenset({"/health", "/health/ready", "/ping", "/metrics", "/load"})
"""Asked every few seconds, by machines: logged at level debug."""


class RequestLog:
    """Takes X-Request-Id where it is printable and short, makes one otherwise, and returns it with every reply."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        current = given if _ACCEPTABLE_ID.fullmatch(given) else uuid.uuid4().hex
        request_id.set(current)
        reply = _Reply(send, current)
        started = time.monotonic()
        try:
            await self._app(scope, receive, reply.send)
        except Exception:
            if not reply.is_complete:
                raise  # uvicorn logs it and closes the connection
            # The handler of unforeseen errors has logged and answered it, and Starlette raises it again all the same.
        finally:
            seconds = time.monotonic() - started
            self._metrics.count_reply(scope["method"], _route_of(scope), reply.status)
            _log(scope, reply, seconds)


class _Reply:
    """What passes on its way to the client. status: 499, nginx's number, when nothing was sent."""

    def __init__(self, send: Send, current: str) -> None:
        self._send = send
        self._request_id = current
        self.status = 499
        self.num_bytes = 0
        self.is_complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self._request_id
        elif message["type"] == "http.response.body":
            self.num_bytes += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
        await self._send(message)


def _route_of(scope: Scope) -> str:
    """The path as the application declares it; a label of a metric must not take whatever clients send."""
    return getattr(scope.get("route"), "path", "other")


def _log(scope: Scope, reply: _Reply, seconds: float) -> None:
    client = scope["client"][0] if scope.get("client") else "this process"
    # As it came, percent-encoded and without the query: nothing in it can break a line.
    path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")
    is_quiet = path in _QUIET_PATHS or scope.get("client") is None
    level = logging.DEBUG if is_quiet else logging.INFO
    fields = {
        "client": client,
        "method": scope["method"],
        "path": path,
        "status": reply.status,
        "bytes": reply.num_bytes,
        "seconds": round(seconds, 6),
    }
    line = '%s "%s %s" %d, %d bytes, %.3f s'
    logger.log(
        level, line, client, scope["method"], path, reply.status, reply.num_bytes, seconds, extra={"fields": fields}
    )

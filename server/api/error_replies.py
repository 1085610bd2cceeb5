"""Every error as a reply: OpenAI's shape under /v1, a plain one elsewhere; never a stack trace."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.errors import (
    EngineUnavailableError,
    MegaserveError,
    OverloadedError,
    RequestError,
    RequestFailedError,
)
from server.frontend.generation import RequestTimeoutError

logger = logging.getLogger(__name__)

_RETRY_UNAVAILABLE_SECONDS = 5
_OPENAI_PATHS = ("/v1/", "/completions", "/chat/completions")


class ErrorReply(NamedTuple):
    """status: HTTP's. kind: a word for programs. field: JSON path of the field at fault, if one is."""

    status: int
    kind: str
    message: str
    field: str | None = None
    retry_after_seconds: int | None = None

    def as_json(self, *, openai: bool) -> dict[str, Any]:
        """The body, in one of the two shapes."""
        if not openai:
            return {"error": {"message": self.message, "type": self.kind, "field": self.field}}
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.kind}}


def error_reply(error: Exception) -> ErrorReply:
    """What to tell the client about any exception."""
    match error:
        case OverloadedError():
            return ErrorReply(429, "overloaded", error.message, retry_after_seconds=error.retry_after_seconds)
        case RequestError():
            kind = error.code or _request_error_kind(error.status)
            return ErrorReply(error.status, kind, error.message, error.field)
        case EngineUnavailableError():
            return ErrorReply(503, "unavailable", str(error), retry_after_seconds=_RETRY_UNAVAILABLE_SECONDS)
        case RequestTimeoutError():
            return ErrorReply(504, "timeout", str(error))
        case RequestFailedError():
            return ErrorReply(500, "failed", str(error))
        case HTTPException():
            return ErrorReply(error.status_code, _request_error_kind(error.status_code), str(error.detail))
        case _:
            return ErrorReply(500, "internal", "internal error; the server's log has the details")


def install_error_handlers(app: FastAPI) -> None:
    """Answer our own errors, HTTP's (404, 405) and everything unforeseen."""
    for kind in (MegaserveError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    path = request.url.path
    if error_reply(error).kind == "internal":
        logger.error("%s %s failed", request.method, path, exc_info=error)
    return error_response(error, path.removeprefix(request.scope.get("root_path", "")))


def error_response(error: Exception, path: str) -> Response:
    """The whole reply. path: the route's, which decides on the shape."""
    reply = error_reply(error)
    headers = dict(getattr(error, "headers", None) or {})
    if reply.retry_after_seconds is not None:
        headers["retry-after"] = str(reply.retry_after_seconds)
    if reply.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body was not read
    if reply.status == 401:
        headers["www-authenticate"] = "Bearer"
    body = reply.as_json(openai=path.startswith(_OPENAI_PATHS))
    return Response(msgspec.json.encode(body), reply.status, headers, media_type="application/json")


_KINDS = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "too_large",
}


def _request_error_kind(status: int) -> str:
    return _KINDS.get(status, "invalid_request")

"""From HTTP statuses to failures by kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from evaluation.status import Status
from evaluation.transport.outcome import Failure

_MAX_MESSAGE_LENGTH = 500
_CONTEXT_CODE = "context_length_exceeded"  # OpenAI's error code


def http_failure(status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """The failure an HTTP status other than 200 stands for."""
    message, code = _error_of(body)
    return Failure(
        status=_kind(status, code),
        message=f"HTTP {status}: {message}" if message else f"HTTP {status}",
        http_status=status,
        retry_after=retry_after_seconds(headers.get("Retry-After"), datetime.now(UTC)),
    )


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Seconds to wait by a Retry-After header, a number or a date (RFC 9110, 10.2.3); None when it is absent or odd."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now.timestamp())


def _kind(status: int, code: str | None) -> Status:
    if code == _CONTEXT_CODE:
        return Status.CONTEXT_OVERFLOW
    match status:
        case 401 | 403:
            return Status.AUTH
        case 408:
            return Status.TIMEOUT
        case 429:
            return Status.RATE_LIMITED
        case 503:
            return Status.OVERLOADED
        case _ if 400 <= status < 500:
            return Status.BAD_REQUEST
        case _ if status >= 500:
            return Status.SERVER_5XX
        case _:
            return Status.MALFORMED_RESPONSE


def _error_of(body: bytes) -> tuple[str, str | None]:
    """Message and code of an error body: OpenAI's `{"error": {message, code}}`, FastAPI's `{"detail"}`, or text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text[:_MAX_MESSAGE_LENGTH], None
    error = value.get("error", value.get("detail", value.get("message"))) if isinstance(value, dict) else value
    if isinstance(error, dict):
        # OpenAI's shape says it as the code, /generate's, which has none, as the type.
        code = error.get("code") or error.get("type")
        return str(error.get("message", text))[:_MAX_MESSAGE_LENGTH], code if isinstance(code, str) else None
    return str(error if error is not None else text)[:_MAX_MESSAGE_LENGTH], None

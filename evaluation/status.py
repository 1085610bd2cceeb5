"""How a question can end: one typed status per item, never an error text in place of an answer."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Final status of an item.

    OK: answered. OK_TRUNCATED: answered, cut by the token limit. NO_ANSWER_LENGTH: the token limit was reached before
    any answer. EMPTY: the model said nothing. CONTENT_FILTER: withheld by the server. CLIENT_DATA: the row is bad,
    nothing was asked. BAD_REQUEST, CONTEXT_OVERFLOW: the server refuses this request and always will.
    RATE_LIMITED (429), OVERLOADED (503), TIMEOUT, CONNECTION, SERVER_5XX, MALFORMED_RESPONSE, CANCELLED (aborted on the
    server): may pass next time.
    """

    OK = "ok"
    OK_TRUNCATED = "ok_truncated"
    NO_ANSWER_LENGTH = "no_answer_length"
    EMPTY = "empty"
    CONTENT_FILTER = "content_filter"
    CLIENT_DATA = "client_data"
    BAD_REQUEST = "bad_request"
    CONTEXT_OVERFLOW = "context_overflow"
    AUTH = "auth"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    SERVER_5XX = "server_5xx"
    MALFORMED_RESPONSE = "malformed_response"
    CANCELLED = "cancelled"

    @property
    def is_answered(self) -> bool:
        return self in (Status.OK, Status.OK_TRUNCATED)

    @property
    def is_retryable(self) -> bool:
        """Whether asking the same again can end differently."""
        return self in _RETRYABLE

    @property
    def is_throttling(self) -> bool:
        """The server asks for patience; this says nothing about the request, so no attempt is charged for it."""
        return self in (Status.RATE_LIMITED, Status.OVERLOADED)


_RETRYABLE = frozenset(
    {
        Status.RATE_LIMITED,
        Status.OVERLOADED,
        Status.TIMEOUT,
        Status.CONNECTION,
        Status.SERVER_5XX,
        Status.MALFORMED_RESPONSE,
        Status.CANCELLED,
    }
)

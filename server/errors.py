"""Every error the server raises on purpose.

MegaserveError
├── ConfigurationError        the command line, the checkpoint or the machine does not allow a start (exit status 2)
├── RequestError              the client's input is wrong (4xx); names field, limit and value
│   └── OverloadedError       too much is queued (429)
├── EngineUnavailableError    the ranks are down, loading or restarting (503)
└── RequestFailedError        the engine gave this one request up (500)
"""

from __future__ import annotations


class MegaserveError(Exception):
    """Root of the tree."""


class ConfigurationError(MegaserveError):
    """A start is impossible; the message says what to change."""


class RequestError(MegaserveError):
    """The client's input is wrong.

    `field` is the JSON path of the offending field (`sampling_params.top_p`), None when the body as a whole is wrong.
    `code` is a word for programs where the status alone does not say enough.
    """

    def __init__(self, message: str, *, field: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.status = status
        self.code = code


class OverloadedError(RequestError):
    """The waiting queue is full."""

    def __init__(self, message: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message, status=429)
        self.retry_after_seconds = retry_after_seconds


class EngineUnavailableError(MegaserveError):
    """The ranks cannot take or finish requests now; the message is the reason shown by `/health/ready`."""


class RequestFailedError(MegaserveError):
    """The engine gave this one request up; others are not affected."""

"""What a line of the log looks like, as text or as JSON, with the id of the HTTP request that it belongs to."""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from typing import Any, Literal

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that the running task answers; set by the outermost layer of the HTTP application."""

LogFormat = Literal["text", "json"]


def configure_logging(level: str, log_format: LogFormat, rank: int | None = None) -> None:
    """Send this process's log to standard error. rank: which one this is, None in the HTTP process."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(rank) if log_format == "json" else TextFormatter(rank))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class TextFormatter(logging.Formatter):
    """`time LEVEL logger [request id]: message`; a rank says which one it is."""

    def __init__(self, rank: int | None) -> None:
        who = "%(name)s" if rank is None else f"[rank {rank}]"
        super().__init__(f"%(asctime)s %(levelname)s {who}%(for_request)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        current = request_id.get()
        record.for_request = f" [{current}]" if current else ""
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line. What a call passes as `extra={"fields": {...}}` stands beside the message."""

    def __init__(self, rank: int | None) -> None:
        super().__init__()
        self._who = {} if rank is None else {"rank": rank}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._who,
            "message": record.getMessage(),
        }
        if current := request_id.get():
            line["request_id"] = current
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)

    @staticmethod
    def _time(record: logging.LogRecord) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z"

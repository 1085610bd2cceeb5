"""Lines of the log."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from server.log_format import JsonFormatter, TextFormatter, request_id


@pytest.fixture
def record() -> logging.LogRecord:
    return logging.LogRecord("server.x", logging.WARNING, __file__, 1, "%d left\nof %s", (3, "é"), None)


@pytest.fixture
def for_request() -> Iterator[str]:
    token = request_id.set("id-1")
    yield "id-1"
    request_id.reset(token)


def test_text(record: logging.LogRecord) -> None:
    assert TextFormatter(None).format(record).endswith(" WARNING server.x: 3 left\nof é")
    assert TextFormatter(2).format(record).endswith(" WARNING [rank 2]: 3 left\nof é")


def test_text_of_a_request(record: logging.LogRecord, for_request: str) -> None:
    assert f"server.x [{for_request}]: 3 left" in TextFormatter(None).format(record)


def test_json_is_one_line_with_all_there_is(record: logging.LogRecord, for_request: str) -> None:
    record.fields = {"status": 200}
    try:
        raise ValueError("deep\ndown")
    except ValueError:
        record.exc_info = sys.exc_info()
    text = JsonFormatter(1).format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "3 left\nof é"
    assert (line["level"], line["logger"], line["rank"]) == ("warning", "server.x", 1)
    assert (line["request_id"], line["status"]) == (for_request, 200)
    assert "ValueError: deep" in line["exception"]
    assert line["time"].endswith("Z")


def test_json_outside_of_requests(record: logging.LogRecord) -> None:
    assert "request_id" not in json.loads(JsonFormatter(None).format(record))

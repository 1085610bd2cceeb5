"""HTTP statuses and reply bodies as typed outcomes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from evaluation.status import Status
from evaluation.transport.failures import http_failure, retry_after_seconds
from evaluation.transport.protocol import parse_chat, parse_generate

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (400, Status.BAD_REQUEST),
        (401, Status.AUTH),
        (403, Status.AUTH),
        (404, Status.BAD_REQUEST),
        (408, Status.TIMEOUT),
        (413, Status.BAD_REQUEST),
        (422, Status.BAD_REQUEST),
        (429, Status.RATE_LIMITED),
        (500, Status.SERVER_5XX),
        (502, Status.SERVER_5XX),
        (503, Status.OVERLOADED),
        (504, Status.SERVER_5XX),
        (204, Status.MALFORMED_RESPONSE),
    ],
)
def test_http_statuses(code, status):
    failure = http_failure(code, {}, b"")
    assert (failure.status, failure.http_status, failure.message) == (status, code, f"HTTP {code}")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "top_p is 2"}}', "HTTP 400: top_p is 2"),
        (b'{"error": "bad"}', "HTTP 400: bad"),
        (b'{"detail": "Not Found"}', "HTTP 400: Not Found"),
        (b"<html>\xff", "HTTP 400: <html>\ufffd"),
        (b"x" * 10_000, "HTTP 400: " + "x" * 500),
        (b"null", "HTTP 400: null"),
    ],
)
def test_error_messages(body, message):
    assert http_failure(400, {}, body).message == message


@pytest.mark.parametrize(
    "error",
    [
        {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"},
        {"message": "too long", "type": "context_length_exceeded", "field": "text"},
    ],
    ids=["OpenAI's", "/generate's"],
)
def test_context_overflow_is_told_by_its_code(error):
    assert http_failure(400, {}, json.dumps({"error": error}).encode()).status is Status.CONTEXT_OVERFLOW


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("\u0665", None),
    ],
)
def test_retry_after(header, seconds):
    assert retry_after_seconds(header, NOW) == seconds


def chat(content: Any, reason: Any = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}, "finish_reason": reason}], **more}


def generate(text: Any, reason: Any = "stop", **meta: Any) -> dict[str, Any]:
    return {"text": text, "output_ids": [], "meta_info": {"finish_reason": {"type": reason}, **meta}}


@pytest.mark.parametrize(("make", "parse"), [(chat, parse_chat), (generate, parse_generate)])
@pytest.mark.parametrize(
    ("content", "reason", "status"),
    [
        ("B", "stop", Status.OK),
        ("B because", "length", Status.OK_TRUNCATED),
        ("", "stop", Status.EMPTY),
        (" \n", "stop", Status.EMPTY),
        ("", "length", Status.NO_ANSWER_LENGTH),
        (None, "length", Status.NO_ANSWER_LENGTH),
        (None, "stop", Status.MALFORMED_RESPONSE),
        (["B"], "stop", Status.MALFORMED_RESPONSE),
        ("half", "abort", Status.CANCELLED),
        ("half", "error", Status.SERVER_5XX),
        ("", "content_filter", Status.CONTENT_FILTER),
        ("B", None, Status.MALFORMED_RESPONSE),
        ("B", "tool_calls", Status.MALFORMED_RESPONSE),
    ],
)
def test_finish_reasons(make, parse, content, reason, status):
    assert parse(make(content, reason)).status is status


def test_what_a_server_says_beside_the_text():
    reply = parse_generate(generate("B", queue_time=0.25, ttft=1, e2e_latency=None))
    assert reply.times == {"queue": 0.25, "first_token": 1.0}
    reply = parse_chat(chat("B", system_fingerprint="fp_1"))
    assert (reply.fingerprint, reply.times) == ("fp_1", None)


def test_text_stays_as_it_came_and_tokens_are_counted():
    reply = parse_chat(chat(" B \n", usage={"prompt_tokens": 5, "completion_tokens": 2}))
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == (" B \n", 5, 2)
    reply = parse_generate(generate("B", prompt_tokens=5, completion_tokens=None))
    assert (reply.prompt_tokens, reply.completion_tokens) == (5, 0)
    assert parse_chat(chat("\ud83d\ude00 \ud83d")).text == "\U0001f600 \ufffd"


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "text",
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"message": None, "finish_reason": "stop"}]},
        {"choices": [{"message": {}, "finish_reason": "stop"}]},
        chat("B", usage={"prompt_tokens": "many"}),
        {"text": "B", "meta_info": None},
        {"text": "B", "meta_info": {"finish_reason": "stop"}},
        generate("B", prompt_tokens=1e308),
    ],
)
def test_odd_bodies_are_malformed(body):
    assert parse_chat(body).status is Status.MALFORMED_RESPONSE
    assert parse_generate(body).status is Status.MALFORMED_RESPONSE

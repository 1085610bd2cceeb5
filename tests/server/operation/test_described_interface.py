"""Requests made up from the OpenAPI document: whatever they are, no answer is a 5xx."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings

NUM_EXAMPLES = 15
PATIENCE = 60

# A paused engine would answer nothing, and a profile is recorded by one request only; both have tests of their own.
_LEFT_OUT = {"/pause", "/start_profile"}


@pytest.fixture(scope="module")
def operations(guarded_server: Any, keys: tuple[str, str, str]) -> list[schemathesis.APIOperation]:
    headers = {"authorization": f"Bearer {keys[2]}"}
    description = httpx.get(f"{guarded_server.url}/openapi.json", headers=headers).json()
    found = [result.ok() for result in schemathesis.openapi.from_dict(description).get_all_operations()]
    return [operation for operation in found if operation.path not in _LEFT_OUT]


def test_no_request_makes_an_error_of_the_server(
    operations: list[schemathesis.APIOperation], guarded_server: Any, keys: tuple[str, str, str]
) -> None:
    headers = {"authorization": f"Bearer {keys[2]}"}
    statuses = {operation.label: statuses_of(operation, guarded_server.url, headers) for operation in operations}
    for label in ("POST /generate", "POST /v1/completions", "POST /v1/chat/completions"):
        assert 400 in statuses[label]
    assert statuses["GET /load"] == {200}
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 1}}
    assert httpx.post(f"{guarded_server.url}/generate", headers=headers, json=body).status_code == 200


def statuses_of(operation: schemathesis.APIOperation, url: str, headers: dict[str, str]) -> set[int]:
    """What made-up requests are answered with."""
    found = set()

    @seed(20260830)
    @settings(max_examples=NUM_EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: schemathesis.Case) -> None:
        reply = case.call(base_url=url, headers=headers, timeout=PATIENCE)
        found.add(reply.status_code)
        assert reply.status_code < 500, reply.text
        assert "Traceback" not in reply.text

    ask()
    return found

"""What the engine gives up, and which error that is for the client."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.error_replies import error_reply
from server.frontend.engine_client import _error_of
from server.request import RequestOutput


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [({}, 500, None), ({"invalid_field": "regex"}, 400, "regex"), ({"is_overload": True}, 429, None)],
)
def test_the_status_says_whose_fault_it_is(fields: dict[str, Any], status: int, field: str | None) -> None:
    output = RequestOutput(request_id="a", finish_reason="error", error="the reason", **fields)
    reply = error_reply(_error_of(output))
    assert (reply.status, reply.field, reply.message) == (status, field, "the reason")

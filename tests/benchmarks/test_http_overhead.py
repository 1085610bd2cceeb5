"""The HTTP layer's overhead, on few streams: the figures are there, and belong to the tokens that were sent."""

from __future__ import annotations

import pytest

from benchmarks.http_overhead import NUM_TOKENS, measure, print_result


def test_every_request_and_token_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    result = measure((1, 3), 1)
    assert list(result["medians"]) == [1, 3]
    for figures in result["medians"].values():
        assert 0 < figures["request p50"] <= figures["request max"]
        assert figures["tokens per event"] >= 1
        assert 0 < figures["token p50"] <= figures["token p95"] <= figures["token max"]
    assert result["num_tokens"] == NUM_TOKENS
    print_result(result)
    assert "streams" in capsys.readouterr().out

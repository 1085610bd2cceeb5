"""`megaserve bench http` on a tiny checkpoint: a real server, started, measured and stopped."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from benchmarks.cli import main
from benchmarks.http_load import Answer, Event

SHORT = ("--num-prompts", "6", "--max-new-tokens", "5", "--repetitions", "2", "--quiet-wait", "0", "--threads", "1")


def test_result(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    before = {child.pid for child in psutil.Process().children()}
    assert main(["http", "--load", str(tiny_checkpoint), *SHORT, "--concurrency", "3", "--json", str(file)]) == 0
    assert {child.pid for child in psutil.Process().children()} <= before
    assert "time to first token, s" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert result["output_tokens_per_second"] > 0
    assert result["total_tokens_per_second"] > result["output_tokens_per_second"]
    assert len(result["repetitions"]) == len(result["streamed_repetitions"]) == 2
    for name in ("latency_seconds", "ttft_seconds"):
        assert 0 < result[name]["p50"] <= result[name]["p95"]
    steps = result["step_ms"]
    assert 0 < steps["median"] <= steps["p95"]
    assert steps["batch_size"] == 3
    assert 0 < steps["num_steps"] <= 2 * 6
    ranks = result["memory_per_rank"]
    assert result["peak_rss_bytes"] > ranks["rss_ready_bytes"] > ranks["weights_bytes_per_rank"] > 0
    assert (result["concurrency"], result["dtype"], result["threads"]) == (3, "fp32", 1)
    assert result["prefix_caching"] is False
    assert {"versions", "machine", "load_seconds", "shutdown_seconds"} <= result.keys()


def test_a_server_that_cannot_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http", "--load", str(tmp_path), "--", "--port", "70000"]) == 2
    message = capsys.readouterr().err
    assert "megaserve bench: --port" in message
    assert "70000" in message


def test_time_per_token_does_not_count_what_the_first_event_brought() -> None:
    assert Answer(9.0, Event(1.0, 3), Event(5.0, 11)).seconds_per_token == 0.5
    assert Answer(9.0, Event(1.0, 11), Event(1.0, 11)).seconds_per_token is None
    assert Answer(9.0).seconds_per_token is None


@pytest.mark.proof
def test_a_server_that_ends_while_it_is_waited_for_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http", "--load", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert str(tmp_path) in message
    assert "latest_checkpointed_iteration.txt" in message
    assert "Traceback" not in message

"""`megaserve bench latency` on a tiny checkpoint, in process and behind HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cli import main


@pytest.mark.proof
def test_result(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    short = ("--repetitions", "1", "--quiet-wait", "0", "--threads", "1")
    assert main(["latency", "--load", str(tiny_checkpoint), *short, "--json", str(file)]) == 0
    assert "beside prefills" in capsys.readouterr().out
    result = json.loads(file.read_text())
    decode = result["decode_ms"]
    assert decode["ratio"] == pytest.approx(decode["streamed"] / decode["in_process"])
    # The model takes 1,024 tokens, and one must be new.
    assert list(result["ttft_ms"]) == ["16", "64", "128", "256", "512"]
    assert all(times["in_process"] > 0 and times["streamed"] > 0 for times in result["ttft_ms"].values())
    gaps = result["inter_token_ms"]
    assert gaps["num_prefills"] > 0
    for kind in ("alone", "beside_prefill"):
        assert 0 <= gaps[kind]["p50"] <= gaps[kind]["p95"] <= gaps[kind]["max"]

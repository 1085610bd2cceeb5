"""`megaserve bench sweep` on a tiny checkpoint: every point is there, and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.cli import main
from benchmarks.sweep_charts import draw_sweep

SHORT = ("--max-batch", "2", "--max-context", "256", "--repetitions", "1", "--quiet-wait", "0", "--threads", "1")


@pytest.mark.proof
def test_result(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    drawn = ("--draw", str(tmp_path), "--json", str(file))
    assert main(["sweep", "--load", str(tiny_checkpoint), *SHORT, *drawn]) == 0
    assert "Scheduler, ms a step" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert [(p["batch_size"], p["context"]) for p in result["by_batch"]] == [(1, 128), (2, 128)]
    assert [(p["batch_size"], p["context"]) for p in result["by_context"]] == [(2, 128), (2, 256)]
    for point in (*result["by_batch"], *result["by_context"]):
        steps = point["step_ms"]
        assert steps["batch_size"] == point["batch_size"]
        assert 0 < steps["median"] <= steps["p95"]
        assert point["decode_tokens_per_second"] == pytest.approx(point["batch_size"] / steps["median"] * 1000)
        assert point["pss_bytes"] > 0
    assert [point["num_waiting"] for point in result["scheduler"]] == [1, 10, 100, 1000, 10000]
    check_drawings(tmp_path)


def test_drawings(tmp_path: Path) -> None:
    """A point that was not measured leaves a gap, and equal results give equal files."""
    points = [
        {
            "batch_size": size,
            "context": 128 * size,
            "decode_tokens_per_second": rate,
            "step_ms": {"median": 1.0, "p95": None if rate is None else 2.0},
            "pss_bytes": 10**9,
        }
        for size, rate in ((1, 30.0), (2, None), (4, 100.0))
    ]
    scheduler = [{"num_waiting": count, "step_ms": {"median": 0.5, "p95": 1.0}} for count in (1, 10, 10000)]
    result = {"by_batch": points, "by_context": points, "scheduler": scheduler, "threads": 2, "dtype": "fp32"}
    draw_sweep({**result, "machine": {"cpu_model": "a processor"}}, tmp_path)
    check_drawings(tmp_path)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    draw_sweep({**result, "machine": {"cpu_model": "a processor"}}, tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == first


def check_drawings(directory: Path) -> None:
    labels = {"sweep_batch.svg": "batch size", "sweep_context.svg": "context, tokens", "sweep_scheduler.svg": "10000"}
    assert {file.name for file in directory.glob("*.svg")} == labels.keys()
    for name, label in labels.items():
        texts = [element.text for element in ElementTree.parse(directory / name).iter() if element.text]
        assert label in texts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--draw", "no-such-directory"], "no-such-directory"), (["--load", "no-such-checkpoint"], "no-such-checkpoint")],
)
def test_what_cannot_work_is_said_before_anything_is_measured(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *arguments]) == 2
    assert message in capsys.readouterr().err

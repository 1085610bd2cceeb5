"""`megaserve bench offline` on a tiny checkpoint: the work is done and equal to Hugging Face's, the result complete."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.cli import main
from benchmarks.errors import MeasurementError, SetupError
from benchmarks.messages import Failed, Generate, Load, encode
from benchmarks.offline import _require_one_rank
from benchmarks.worker import answers
from benchmarks.worker_process import WorkerProcess
from server.config import CheckpointInfo, ResolvedArgument, ResolvedDocument

SHORT = ("--num-prompts", "5", "--max-new-tokens", "6", "--repetitions", "2", "--quiet-wait", "0", "--threads", "1")


def test_result(
    tiny_checkpoint: Path, tiny_hf_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    hf = ("--compare-hf", str(tiny_hf_directory))
    assert main(["offline", "--load", str(tiny_checkpoint), *SHORT, *hf, "--json", str(file)]) == 0
    output = capsys.readouterr()
    assert "output tokens/s" in output.out
    assert "times the better of Hugging Face" in output.out
    assert "hugging_face 32: " in output.err
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    result = json.loads(file.read_text())
    check_ours(result)
    check_hugging_face(result)


def check_ours(result: dict[str, Any]) -> None:
    assert result["total_tokens_per_second"] == pytest.approx(
        result["output_tokens_per_second"] * (40 + 251 + 244 + 145 + 80 + 30) / 30
    )
    rates = [repetition["output_tokens_per_second"] for repetition in result["repetitions"]]
    assert min(rates) <= result["output_tokens_per_second"] <= max(rates)
    assert len(rates) == 2
    assert all(0 <= repetition["foreign_cpu_share"] <= 1 for repetition in result["repetitions"])
    steps = result["step_ms"]
    assert 0 < steps["median"] <= steps["p95"]
    # The first of six tokens comes from prefill; each of two repetitions has at most five steps that only decode.
    assert steps["batch_size"] == 5
    assert 6 <= steps["num_steps"] <= 10
    assert result["peak_rss_bytes"] >= result["memory"]["rss_ready_bytes"] > result["memory"]["weights_bytes"] > 0
    assert result["load_seconds"] > 0
    assert (result["dtype"], result["threads"], result["device"]) == ("fp32", 1, "cpu")
    assert result["prefix_caching"] is False
    assert result["workload"]["prompt_tokens"] == 760
    assert result["versions"]["torch"]
    assert result["machine"]["cpu_model"]


def check_hugging_face(result: dict[str, Any]) -> None:
    theirs = result["hugging_face"]
    by_size = theirs["output_tokens_per_second"]
    assert by_size.keys() == {"16", "32"}
    assert (
        theirs["better_output_tokens_per_second"] == max(by_size.values()) == by_size[str(theirs["better_batch_size"])]
    )
    assert theirs["ratio"] == pytest.approx(result["output_tokens_per_second"] / max(by_size.values()))
    assert theirs["memory"]["weights_bytes"] == result["memory"]["weights_bytes"]
    # Both worked on the same prompts, and an end of sequence stopped neither.
    assert theirs["num_equal_sequences"] == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--load", "no-such-directory"], "no-such-directory"),
        (["--load", ".", "--compare-hf"], "--compare-hf DIR"),
        (["--load", ".", "--compare-hf", "."], "config.json is missing"),
        (["--json", "."], "is a directory"),
        (["--json", "no-such-directory/file"], "does not exist"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_measured(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["offline", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


@pytest.mark.parametrize(
    "arguments",
    [["--num-prompts", "33"], ["--max-new-tokens", "1"], ["--repetitions", "0"], ["--quiet-wait", "-1"], ["--tp", "2"]],
)
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["offline", *arguments])
    assert arguments[0] in capsys.readouterr().err


def test_more_than_one_rank_is_refused() -> None:
    argument = ResolvedArgument(arg="tensor_model_parallel_size", value=2, source="command_line")
    checkpoint = CheckpointInfo("checkpoint", "torch_dist", 0)
    document = ResolvedDocument(kind="gpt", reasons=[], arguments=[argument], conflicts=[], checkpoint=checkpoint)
    with pytest.raises(SetupError, match="bench http"):
        _require_one_rank(document)


LOAD = Load(model="missing", dtype="fp32", device="cpu", threads=1, prompts=[[1]])


def test_a_worker_that_fails_is_reported_with_the_reason() -> None:
    with WorkerProcess("engin", LOAD) as worker, pytest.raises(MeasurementError, match="no worker of kind 'engin'"):
        worker.load()


@pytest.mark.parametrize("kind", ["engine", "hugging_face"])
def test_a_model_that_cannot_be_loaded_is_an_answer(kind: str, tmp_path: Path) -> None:
    load = msgspec.structs.replace(LOAD, model=str(tmp_path))
    (answer,) = answers(kind, io.BytesIO(encode(load) + b"\n"))
    assert isinstance(answer, Failed)
    assert str(tmp_path) in answer.reason


def test_a_worker_that_is_killed_is_reported_with_its_status() -> None:
    with WorkerProcess("engine", LOAD) as worker:
        worker._process.kill()
        with pytest.raises(MeasurementError, match="ended with status -9"):
            worker.generate(Generate(max_new_tokens=2))

"""`python -m benchmarks.quantization`: the figures of every format, and what counts as another answer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.messages import Score, Scored
from benchmarks.quantization import FORMATS, main
from benchmarks.quantization_accuracy import QUESTIONS, Answers, perplexity
from server.config import EngineConfig


def test_all_formats_are_measured() -> None:
    (choices,) = (
        field.metadata["argparse"]["choices"]
        for field in EngineConfig.__dataclass_fields__.values()
        if field.name == "quantize"
    )
    assert list(FORMATS) == choices


def test_perplexity() -> None:
    scored = Scored(seconds=1.0, logprobs=[3 * math.log(1 / 4), 1 * math.log(1 / 4)], peak_rss_bytes=0)
    assert perplexity(scored, Score(num_scored_tokens=[3, 1])) == pytest.approx(4)


def test_other_answers() -> None:
    answers = Answers({"1": "A", "2": "B", "3": "C"}, score=1.0)
    assert answers.num_other_than(answers) == 0
    assert answers.num_other_than(Answers({"1": "A", "2": "C", "3": "A"}, score=0.3)) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--questions", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--json", "nowhere/result.json"], "nowhere does not exist"),
        (["--load", "nowhere"], "nowhere: no such directory"),
    ],
)
def test_refusals(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 2
    assert message in capsys.readouterr().err


@pytest.mark.proof
def test_result(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, file = tmp_path / "questions.jsonl", tmp_path / "result.json"
    questions.write_text("".join(QUESTIONS.read_text().splitlines(keepends=True)[:5]))
    short = ("--repetitions", "2", "--quiet-wait", "0", "--threads", "1", "--questions", str(questions))
    assert main(["--load", str(tiny_checkpoint), *short, "--json", str(file)]) == 0
    assert "perplexity" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert result["workload"]["name"] == "W32"
    assert result["num_questions"] == 5
    plain, quantized = (result["formats"][name] for name in FORMATS)
    for figures in (plain, quantized):
        assert 0 < figures["decode_ms"] == sum(figures["repetitions"]["decode_ms"]) / 2
        assert figures["output_tokens_per_second"] > 0
        assert figures["peak_rss_bytes"] > figures["weights_bytes"]
        assert figures["perplexity"] > 1
    assert quantized["weights_bytes"] < plain["weights_bytes"] / 2
    assert quantized["perplexity"] != plain["perplexity"]
    assert quantized["perplexity"] == pytest.approx(plain["perplexity"], rel=0.02)
    assert plain["num_changed_answers"] == 0

"""`megaserve bench prefix`: questions that share contexts, and answers that agree with lm-eval's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cli import main
from benchmarks.prefix import CHOICE_TOKENS, CONTEXT_TOKENS, make_questions


def test_choices_share_their_context_and_differ() -> None:
    questions = make_questions(lambda text: list(range(len(text))), 6)
    assert len(questions) == 6
    for number in range(6):
        prompts = questions.prompts[4 * number : 4 * number + 4]
        contexts = {tuple(prompt[:CONTEXT_TOKENS]) for prompt in prompts}
        choices = [tuple(prompt[CONTEXT_TOKENS:]) for prompt in prompts]
        assert len(contexts) == 1
        assert [len(choice) for choice in choices] == list(CHOICE_TOKENS) == questions.num_scored[:4]
        assert len({choice[0] for choice in choices}) == 4
    assert len({tuple(prompt[:16]) for prompt in questions.prompts}) == 6


def test_answers_are_the_likeliest_of_each_question() -> None:
    questions = make_questions(lambda text: list(range(len(text))), 4)
    assert questions.answers([-1, -2, -3, -4, -9, -8, -7, -6]) == [0, 3]


@pytest.mark.proof
def test_result(
    tiny_checkpoint: Path, tiny_hf_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    model = ("--load", str(tiny_checkpoint), "--hf-directory", str(tiny_hf_directory))
    short = ("--num-questions", "5", "--repetitions", "2", "--quiet-wait", "0", "--threads", "1")
    assert main(["prefix", *model, *short, "--json", str(file)]) == 0
    assert "times faster" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert result["num_equal_answers"] == 5
    assert result["largest_difference"] < 1e-3
    assert result["cached_share"] > 0
    assert result["lm_eval_batch_size"] in (1, 4, 16, 32)
    seconds = result["seconds"]
    assert len(seconds["megaserve"]) == len(seconds["lm_eval"]) == 2
    assert result["times_better"]["min"] == pytest.approx(
        min(theirs / ours for ours, theirs in zip(seconds["megaserve"], seconds["lm_eval"], strict=True))
    )

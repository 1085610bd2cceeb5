"""lm-evaluation-harness itself against the whole server: its numbers are those of a direct computation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BOS = 1
QUESTIONS = [
    "the quick brown fox", "hello world", "please answer now", "the lazy dog jumps", "user and assistant", "stop 😀",
]  # fmt: skip
WORDS = [" hello", " dog 😀", " over the"]

CHOICE_TASK = """\
task: local_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
target_delimiter: ""
"""
ROLLING_TASK = """\
task: local_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}]
"""
GENERATION_TASK = """\
task: local_generation
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "x"
generation_kwargs: {until: ["e"], max_gen_toks: 12}
metric_list: [{metric: exact_match}]
"""


RUNS: dict[str, dict[str, Any]] = {
    "token ids in batches": {"task": "local_choice", "options": {"batch_size": 4}},
    "texts in batches": {
        "task": "local_choice",
        "arguments": {"tokenized_requests": False},
        "options": {"batch_size": 3},
    },
    "the server's tokenizer": {"task": "local_choice", "arguments": {"tokenizer_backend": "auto", "tokenizer": None}},
    "rolling": {"task": "local_rolling"},
    "generation": {"task": "local_generation", "options": {"batch_size": 2, "limit": 3}},
}


@pytest.fixture(scope="module")
def outcomes(server_url: str, truth: tuple[Any, Path]) -> dict[str, Any]:
    """What the harness measured, by run; one process for all, because it takes long to import."""
    model, directory = truth
    tasks = directory / "tasks"
    tasks.mkdir()
    data = directory / "questions.jsonl"
    rows = [{"question": question, "choices": [model.likeliest_word(question), *WORDS]} for question in QUESTIONS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for index, task in enumerate((CHOICE_TASK, ROLLING_TASK, GENERATION_TASK)):
        (tasks / f"{index}.yaml").write_text(task.replace("DATA", str(data)))
    shared = {
        "base_url": f"{server_url}/v1/completions", "model": "tiny", "tokenizer": str(directory / "hf"),
        "tokenizer_backend": "huggingface", "max_length": 256,
    }  # fmt: skip
    runs = [
        {
            "model": "local-completions",
            "task": run["task"],
            "arguments": shared | run.get("arguments", {}),
            "options": run.get("options", {}),
        }
        for run in RUNS.values()
    ]
    plan, result = directory / "plan.json", directory / "result.json"
    plan.write_text(json.dumps({"tasks": str(tasks), "runs": runs}))
    script = str(Path(__file__).with_name("run_lm_eval.py"))
    caches = {"HF_HOME": str(directory / "cache"), "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, script, str(plan), str(result)],
        capture_output=True, text=True, timeout=280, env=os.environ | caches,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(RUNS, json.loads(result.read_text()), strict=True))


@pytest.mark.parametrize("run", ["token ids in batches", "texts in batches", "the server's tokenizer"])
def test_choices_have_the_model_s_own_likelihoods(outcomes: dict[str, Any], truth: tuple[Any, Path], run: str) -> None:
    model = truth[0]
    greedy = 0
    assert len(outcomes[run]) == len(QUESTIONS)
    for sample in outcomes[run]:
        assert len(sample["answers"]) == 1 + len(WORDS)
        for (context, continuation), [[logprob, is_greedy]] in zip(sample["arguments"], sample["answers"], strict=True):
            expected = model.loglikelihood(model.encode(context), model.encode(context + continuation))
            assert logprob == pytest.approx(expected[0], abs=1e-4)
            assert is_greedy == expected[1]
            greedy += is_greedy
    assert greedy > 0


def test_a_whole_text_has_the_model_s_own_likelihood(outcomes: dict[str, Any], truth: tuple[Any, Path]) -> None:
    model = truth[0]
    for question, sample in zip(QUESTIONS, outcomes["rolling"], strict=True):
        expected, _ = model.loglikelihood([BOS], [BOS, *model.encode(question)])
        assert sample["answers"][0][0] == pytest.approx(expected, abs=1e-4)


def test_texts_are_generated_greedily_up_to_the_stop(outcomes: dict[str, Any], truth: tuple[Any, Path]) -> None:
    texts = [sample["answers"][0][0] for sample in outcomes["generation"]]
    assert texts == [truth[0].greedy_text(question, 12, "e") for question in QUESTIONS[:3]]

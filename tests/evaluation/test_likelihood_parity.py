"""Log-probabilities over HTTP from a real model equal those of its full logits in Hugging Face's implementation."""

from __future__ import annotations

import copy
import json

import pytest

from evaluation.cli import main

ROWS = [
    {"question": "What is the capital of France?", "choices": ["Lyon", "Paris", "Marseille"], "answer": "Paris"},
    {"question": "How does a naïve café owner say hello? 👋", "choices": ["Grüß Gott", "👋🏽", "hé!"], "answer": "hé!"},
    {"question": "2 + 2 =", "choices": ["4", "22", "four point nil"], "answer": "4"},
]


@pytest.fixture(scope="module")
def server(smollm2_checkpoint, running_server):
    """URL of `megaserve serve` with SmolLM2 in fp32, ready."""
    with running_server(smollm2_checkpoint, "--dtype", "fp32") as url:
        yield url


def direct(model, tokenizer, context, continuation):
    """Sum and is-greedy of the continuation's tokens, from one forward over the whole, in double precision.

    In float32 two correct computations of a sum near -34 differ by 1e-4 already.
    """
    import torch

    ids = tokenizer(context + continuation)["input_ids"]
    start = len(tokenizer(context)["input_ids"])
    assert ids[:start] == tokenizer(context)["input_ids"]
    with torch.inference_mode():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    own = logprobs[torch.arange(start - 1, len(ids) - 1), torch.tensor(ids[start:])]
    return own.sum().item(), bool((logprobs[start - 1 : -1].argmax(-1) == torch.tensor(ids[start:])).all())


def test_equal_to_full_logits(server, smollm2_hf, write_jsonl, tmp_path):
    from transformers import PreTrainedTokenizerFast

    from model_providers.checkpoint.smollm2 import smollm2_hf_directory

    exact = copy.deepcopy(smollm2_hf).double()

    tokenizer = PreTrainedTokenizerFast.from_pretrained(smollm2_hf_directory(), local_files_only=True)
    run = tmp_path / "run"
    flags = ["--server", server, "--data", str(write_jsonl(ROWS)), "--output", str(run)]

    assert main([*flags, "--request-type", "multiple_choice"]) == 0

    records = [json.loads(line) for path in (run / "log").iterdir() for line in path.read_text().splitlines()]
    compared = 0
    for record in records:
        row = ROWS[record["row"] - 1]
        for likelihood, choice in zip(record["likelihoods"], row["choices"], strict=True):
            context = f"Question: {row['question']}\nAnswer:"
            logprob, is_greedy = direct(exact, tokenizer, context, f" {choice}")
            assert likelihood["logprob"] == pytest.approx(logprob, abs=1e-4)
            assert likelihood["is_greedy"] == is_greedy
            compared += 1
    assert compared == 9


def test_greedy_continuation_is_greedy(server, write_jsonl, tmp_path):
    """What the model generates is what it finds likeliest, token by token."""
    context = "The capital of France is"
    generated, measured = tmp_path / "generated", tmp_path / "measured"
    data = write_jsonl([{"id": 1, "prompt": context, "answer": "?"}])
    flags = ["--server", server, "--max-new-tokens", "8", "--scorer", "none"]
    assert main([*flags, "--data", str(data), "--output", str(generated)]) == 0
    (line,) = [path.read_text() for path in (generated / "log").iterdir()]
    rows = [
        {"id": 1, "prompt": context, "answer": json.loads(line)["text"]},
        {"id": 2, "prompt": context, "answer": " blue"},
    ]
    data = write_jsonl(rows, "measured.jsonl")

    assert main([*flags[:2], "--data", str(data), "--output", str(measured), "--request-type", "loglikelihood"]) == 0

    (log,) = [path.read_text().splitlines() for path in (measured / "log").iterdir()]
    greedy = {json.loads(line)["item_id"]: json.loads(line)["likelihoods"][0]["is_greedy"] for line in log}
    assert greedy == {"1": True, "2": False}

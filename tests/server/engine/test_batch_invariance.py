"""With --batch-invariant a request's logits are the same to the last bit, beside whatever and in whatever chunks.

Scheduling is what differs between the ways, so the whole engine runs: packed linears, norms, attention, all-reduce,
and where there are pictures their encoder, which gets one or many of them at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

DEMO_VLM = Path(__file__).parents[3] / "examples" / "demo_vlm"

Compute = Callable[..., list[dict[str, Any]]]


def run(*arguments: str) -> None:
    # More threads than one per process are asked for by the documents.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=280, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture
def compute(tmp_path: Path) -> Compute:
    """(checkpoint, dtype, threads, kernels) of several documents, for ranks that load one after another.

    Behind these there may be the format of quantized weights.
    """

    def resolved(checkpoint: Path, ranks: int) -> dict[str, Any]:
        path = tmp_path / f"{checkpoint.name}-{ranks}.json"
        if not path.exists():
            flags = ["--load", str(checkpoint), "--tensor-model-parallel-size", str(ranks), "--kv-cache-gb", "0.06"]
            run("-m", "server.arguments.resolver", "--out", str(path), "--", *flags)
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    def compute(cases: list[tuple[Any, ...]], *, ranks: int) -> list[dict[str, Any]]:
        paths = []
        for index, (checkpoint, dtype, threads, kernels, *quantize) in enumerate(cases):
            document = resolved(checkpoint, ranks)
            changes = {"dtype": dtype, "threads": threads, "kernels": kernels, "quantize": [*quantize, "none"][0]}
            for argument in document["arguments"]:
                argument["value"] = changes.get(argument["arg"], argument["value"])
            path = tmp_path / f"case{index}.json"
            path.write_text(json.dumps(document))
            paths.append(str(path))
        result = tmp_path / "result.pt"
        script = str(Path(__file__).with_name("invariance_rank.py"))
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
        run(*launcher, script, ",".join(paths), str(result))
        outcomes: list[dict[str, Any]] = torch.load(result)
        assert len(outcomes) == len(cases)
        return outcomes

    return compute


def check(outcome: dict[str, Any]) -> None:
    alone = outcome["ways"].pop("alone")
    assert alone.shape == (12, outcome["vocab_size"])
    assert torch.isfinite(alone).all()
    assert not torch.equal(alone[0], alone[1])
    assert outcome["cached_tokens"] > 0
    assert len(outcome["ways"]) == 5
    for way, logits in outcome["ways"].items():
        assert torch.equal(logits, alone), way


def test_one_rank(compute: Compute, padded_checkpoint: Path) -> None:
    cases = [(padded_checkpoint, "fp32", 2, "auto"), (padded_checkpoint, "bf16", 1, "portable")]
    for outcome in compute(cases, ranks=1):
        check(outcome)


def test_two_ranks(compute: Compute, padded_checkpoint: Path) -> None:
    for outcome in compute([(padded_checkpoint, "fp32", 1, "auto"), (padded_checkpoint, "bf16", 2, "auto")], ranks=2):
        check(outcome)


def check_with_pictures(outcome: dict[str, Any]) -> None:
    check(outcome)
    assert outcome["images_encoded"] > 2 * 32  # the neighbours' twice, and the target's own once for each way


def test_pictures(compute: Compute) -> None:
    for outcome in compute([(DEMO_VLM, "fp32", 2, "auto"), (DEMO_VLM, "bf16", 1, "portable")], ranks=1):
        check_with_pictures(outcome)


@pytest.mark.proof
def test_pictures_on_two_ranks(compute: Compute) -> None:
    for outcome in compute([(DEMO_VLM, "fp32", 1, "auto"), (DEMO_VLM, "bf16", 2, "auto")], ranks=2):
        check_with_pictures(outcome)


def test_quantized(compute: Compute, padded_checkpoint: Path) -> None:
    """Row-parallel weights have scales of their own on each rank, so other ranks are another rounding, as small."""
    fp32, bf16 = (padded_checkpoint, "fp32", 2, "auto", "int8"), (padded_checkpoint, "bf16", 1, "portable", "int8")
    exact, alone = compute([(padded_checkpoint, "fp32", 2, "auto"), fp32], ranks=1)
    expected = exact["ways"]["alone"][0]  # the first token: later ones follow on what was chosen
    outcomes = [alone, *compute([fp32, bf16], ranks=2)]
    rounding, of_two, of_two_in_bf16 = (
        float((outcome["ways"]["alone"][0] - expected).abs().mean() / expected.std()) for outcome in outcomes
    )
    assert 0 < rounding < 0.1
    assert 0 < of_two < 2 * rounding
    assert 0 < of_two_in_bf16 < 4 * rounding
    for outcome in outcomes:
        check(outcome)


@pytest.mark.proof
def test_smollm2(compute: Compute, smollm2_checkpoint: Path) -> None:
    cases = [(smollm2_checkpoint, "fp32", 2, "auto"), (smollm2_checkpoint, "bf16", 1, "auto")]
    for outcome in compute(cases, ranks=1):
        check(outcome)

"""Engines over real checkpoints, started as the product starts them, and the slow truth to compare them with."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Workload = list[dict[str, Any]]
RunEngine = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def mixed_workload() -> Workload:
    """32 prompts of 4 to 100 tokens, arriving over 10 steps; every fourth shares its beginning with others."""
    rng = random.Random(20240817)
    shared = [rng.randrange(1000, 40000) for _ in range(48)]
    workload = []
    for index in range(32):
        length = rng.choice([4, 9, 17, 33, 64, 100])
        prompt = [rng.randrange(1000, 40000) for _ in range(length)]
        if index % 4 == 3:
            prompt = shared + prompt[:20]
        workload.append(
            {
                "id": str(index),
                "prompt": prompt,
                "max_new_tokens": rng.choice([4, 8, 16]),
                "arrival_step": rng.randrange(10),
            }
        )
    return workload


@pytest.fixture(scope="session")
def greedy_choices() -> Callable[..., list[int]]:
    """(model, prompt, tokens, vocab_size) -> what a Hugging Face model would choose in place of each of `tokens`.

    Given those before it, and among ids below vocab_size. Equal to `tokens` exactly if greedy generation, one prompt by
    itself, gives these tokens; one forward pass instead of one per token.
    """

    @torch.inference_mode()
    def choose(
        model: PreTrainedModel, prompt: list[int], tokens: list[int], vocab_size: int | None = None
    ) -> list[int]:
        logits = model(input_ids=torch.tensor([prompt + tokens[:-1]]), logits_to_keep=len(tokens)).logits
        chosen: list[int] = logits[0, :, :vocab_size].argmax(-1).tolist()
        return chosen

    return choose


@pytest.fixture
def run_engine(tmp_path: Path) -> RunEngine:
    """Resolve `serve` flags and run a workload on as many ranks as they ask for -> {"tokens", "stats"}."""

    def run(checkpoint: Path, workload: Workload, *flags: str, ranks: int = 1) -> dict[str, Any]:
        document, items, result = (tmp_path / name for name in ("document.json", "workload.json", "result.json"))
        items.write_text(json.dumps(workload))
        argv = ["--load", str(checkpoint), "--tensor-model-parallel-size", str(ranks), *flags]
        _run("-m", "server.arguments.resolver", "--out", str(document), "--", *argv)
        script = str(Path(__file__).with_name("greedy_rank.py"))
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
        _run(*torchrun, script, str(document), str(items), str(result))
        outcome: dict[str, Any] = json.loads(result.read_text())
        return outcome

    return run


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]

"""One rank that computes the same request in several ways: `torchrun ... invariance_rank.py DOCUMENTS RESULT`.

DOCUMENTS: files of resolved documents, with commas between them. RESULT, written by rank 0 with torch.save: for each
document {"vocab_size", "ways": {way: (tokens, vocabulary) logits, one row for each generated token}, "cached_tokens"}.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from model_providers.kernels.library import Kernels
from model_providers.parallel import join_world, shutdown_parallel
from server.config import ResolvedDocument
from server.engine.build import BuiltRank, build_rank
from server.engine.engine import Engine
from server.engine.model_runner import follow
from server.engine.profiler import RankProfiler
from server.engine.sampler import Sampler
from server.engine.sequence import SampledToken, Sequence
from server.engine.step_plan import StepKind
from server.request import EngineRequest, SamplingParams

PROMPT_TOKENS, NEW_TOKENS = 90, 12


class RecordingSampler(Sampler):
    """Keeps the logits of the request "target"."""

    def __init__(self, kernels: Kernels | None) -> None:
        super().__init__(kernels)
        self.rows: list[Tensor] = []

    def sample(self, logits: Tensor, sequences: Items[Sequence]) -> list[SampledToken]:
        self.rows += [logits[row].clone() for row, s in enumerate(sequences) if s.request_id == "target"]
        return super().sample(logits, sequences)


def request(name: str, prompt_tokens: int, new_tokens: int, vocab_size: int, arrival: float) -> EngineRequest:
    rng = random.Random(name)
    return EngineRequest(
        request_id=name,
        prompt_token_ids=[rng.randrange(vocab_size) for _ in range(prompt_tokens)],
        params=SamplingParams(max_new_tokens=new_tokens, temperature=0.0),
        arrival_time=arrival,
    )


def neighbours(vocab_size: int) -> list[EngineRequest]:
    rng = random.Random(4)
    return [
        request(str(index), rng.randint(1, 30), rng.randint(3, 9), vocab_size, arrival=rng.random())
        for index in range(31)
    ]


def logits_of_target(
    engine: Engine, vocab_size: int, *, beside: Items[EngineRequest] = (), most_tokens: int, preempt: Items[int] = ()
) -> tuple[Tensor, int]:
    """-> logits, and how many of the prompt's tokens came from the prefix cache. preempt: numbers of steps."""
    scheduler = engine._scheduler
    scheduler.limits = replace(scheduler.limits, max_batched_tokens=most_tokens)
    sampler = engine._sampler = RecordingSampler(engine._kernels)
    engine.add([*beside, request("target", PROMPT_TOKENS, NEW_TOKENS, vocab_size, arrival=0.5)])
    step = cached = 0
    while engine.has_work:
        target = scheduler._by_id.get("target")
        if step in preempt and target is not None:
            assert target.is_running, "a sequence that waits cannot be preempted"
            scheduler._preempt(target)
        for output in engine.step():
            assert output.error is None, output.error
            if output.request_id == "target":
                cached = output.num_cached_tokens
        step += 1
    return torch.stack(sampler.rows), cached


def in_every_way(built: BuiltRank) -> dict[str, Any]:
    engine, vocab_size = built.engine, built.limits.vocab_size
    many = neighbours(vocab_size)
    ways: dict[str, Tensor] = {}
    ways["alone"], _ = logits_of_target(engine, vocab_size, most_tokens=1024)
    ways["from the prefix cache"], cached = logits_of_target(engine, vocab_size, most_tokens=1024)
    for way, options in {
        "in chunks": {"most_tokens": 37},
        "among others": {"beside": many, "most_tokens": 1024},
        "among others, in chunks": {"beside": many, "most_tokens": 53},
        "preempted": {"most_tokens": 64, "preempt": (1, 3, 7)},
    }.items():
        engine.flush_prefix_cache()
        ways[way], _ = logits_of_target(engine, vocab_size, **options)  # type: ignore[arg-type]
    return {"vocab_size": vocab_size, "ways": ways, "cached_tokens": cached}


def main() -> None:
    documents, result = sys.argv[1].split(","), Path(sys.argv[2])
    join_world()
    outcomes = []
    for path in documents:
        document = ResolvedDocument.read(Path(path))
        torch.set_num_threads(document.values["threads"])
        built = build_rank(document)
        if dist.get_rank() == 0:
            outcomes.append(in_every_way(built))
            built.engine.signal(StepKind.STOP)
        else:
            follow(built.runner, RankProfiler(None, dist.get_rank()))
    if dist.get_rank() == 0:
        torch.save(outcomes, result)
    shutdown_parallel()


if __name__ == "__main__":
    main()

"""One rank of an engine without HTTP: `torchrun ... greedy_rank.py DOCUMENT WORKLOAD RESULT`.

WORKLOAD: [{"id", "prompt", "max_new_tokens", "arrival_step"}]. RESULT, written by rank 0: {"tokens": {id: [...]},
"stats": EngineStats as JSON}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from model_providers.parallel import join_world, shutdown_parallel
from server.config import ResolvedDocument
from server.engine.build import build_rank
from server.engine.engine import Engine
from server.engine.model_runner import follow
from server.engine.profiler import RankProfiler
from server.engine.step_plan import StepKind
from server.engine.warmup import warm_up
from server.request import EngineRequest, SamplingParams


def run(engine: Engine, workload: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Requests arrive at their steps; returns generated tokens by id."""
    tokens: dict[str, list[int]] = {item["id"]: [] for item in workload}
    step = 0
    waiting = sorted(workload, key=lambda item: item["arrival_step"])
    while waiting or engine.has_work:
        arrived = [item for item in waiting if item["arrival_step"] <= step]
        waiting = waiting[len(arrived) :]
        engine.add(
            EngineRequest(
                request_id=item["id"],
                prompt_token_ids=item["prompt"],
                params=SamplingParams(max_new_tokens=item["max_new_tokens"], temperature=0.0),
                arrival_time=step + index / 1000,
            )
            for index, item in enumerate(arrived)
        )
        for output in engine.step() if engine.has_work else []:
            assert output.error is None, output.error
            tokens[output.request_id] += output.token_ids
        step += 1
    return tokens


def main() -> None:
    document_path, workload_path, result_path = map(Path, sys.argv[1:])
    document = ResolvedDocument.read(document_path)
    torch.set_num_threads(document.values["threads"])
    join_world()
    built = build_rank(document)
    warm_up(built)
    if dist.get_rank() == 0:
        tokens = run(built.engine, json.loads(workload_path.read_text()))
        built.engine.signal(StepKind.STOP)
        result_path.write_bytes(msgspec.json.encode({"tokens": tokens, "stats": built.engine.stats()}))
    else:
        follow(built.runner, RankProfiler(None, dist.get_rank()))
    shutdown_parallel()


if __name__ == "__main__":
    main()

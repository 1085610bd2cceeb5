"""One rank of `benchmarks.all_reduce`: `torchrun ... -m benchmarks.all_reduce_rank DIRECTORY REPETITIONS`.

DIRECTORY holds a resolved document for each way, and gets rank 0's medians as result.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.aggregates import median
from benchmarks.all_reduce import WAYS
from model_providers.backends.collectives import Collectives
from model_providers.parallel import join_world, shutdown_parallel
from server.config import ResolvedDocument
from server.engine.build import BuiltRank, build_rank
from server.engine.model_runner import follow
from server.engine.profiler import RankProfiler
from server.engine.step_plan import StepKind
from server.engine.warmup import warm_up
from server.process_lifetime import die_with_parent
from server.request import EngineRequest, SamplingParams

_COLUMNS = 576
_ROWS = (1, 4, 16, 64, 512)
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_BATCH_SIZES = (1, 16)
_PROMPT_TOKENS, _NEW_TOKENS = 16, 33


def main() -> None:
    die_with_parent()
    directory, repetitions = Path(sys.argv[1]), int(sys.argv[2])
    documents = {way: ResolvedDocument.read(directory / f"{way}.json") for way in WAYS}
    torch.set_num_threads(documents[WAYS[0]].values["threads"])
    join_world()
    built = {way: build_rank(document) for way, document in documents.items()}
    for each in built.values():
        warm_up(each)
    collectives = {way: each.runner.model.collectives for way, each in built.items()}
    result = {"sums": time_sums(collectives, repetitions), "decode": time_decoding(built, repetitions)}
    if dist.get_rank() == 0:
        (directory / "result.json").write_text(json.dumps(result))
    for each in built.values():
        each.engine.close()
    shutdown_parallel()


def time_sums(collectives: Mapping[str, Collectives], repetitions: int) -> list[dict[str, Any]]:
    """Microseconds by size and way."""
    rows_of_table = []
    for name, dtype in _DTYPES.items():
        for rows in _ROWS:
            part = torch.zeros(rows, _COLUMNS, dtype=dtype)
            calls = 50 if rows > 64 else 200
            runs = {way: partial(_sum_seconds, each, part, calls) for way, each in collectives.items()}
            times = _in_turn(repetitions, runs)
            microseconds = {way: seconds * 1e6 for way, seconds in times.items()}
            rows_of_table.append({"dtype": name, "rows": rows, "columns": _COLUMNS, **microseconds})
    return rows_of_table


def _sum_seconds(collectives: Collectives, part: torch.Tensor, calls: int) -> float:
    dist.barrier()
    started = time.perf_counter()
    for _ in range(calls):
        part = collectives.all_reduce(part)
    return (time.perf_counter() - started) / calls


def time_decoding(built: Mapping[str, BuiltRank], repetitions: int) -> list[dict[str, Any]]:
    """Milliseconds of a step by batch size and way, measured on rank 0."""
    rows_of_table = []
    for batch_size in _BATCH_SIZES:
        runs = {way: partial(_step_seconds, each, batch_size) for way, each in built.items()}
        times = _in_turn(repetitions, runs)
        rows_of_table.append({"batch size": batch_size, **{way: seconds * 1e3 for way, seconds in times.items()}})
    return rows_of_table


def _step_seconds(built: BuiltRank, batch_size: int) -> float:
    """A decode step's mean; 0 on ranks other than 0, which follow."""
    if dist.get_rank() != 0:
        follow(built.runner, RankProfiler(None, dist.get_rank()))
        return 0.0
    engine = built.engine
    engine.flush_prefix_cache()
    engine.add(_request(index, built.limits.vocab_size) for index in range(batch_size))
    engine.step()  # the prompts, all in one step, and the first token of each
    started = time.perf_counter()
    while engine.has_work:
        engine.step()
    seconds = time.perf_counter() - started
    engine.signal(StepKind.STOP)
    return seconds / (_NEW_TOKENS - 1)


def _request(index: int, vocab_size: int) -> EngineRequest:
    return EngineRequest(
        request_id=str(index),
        prompt_token_ids=[(31 * index + place) % vocab_size for place in range(_PROMPT_TOKENS)],
        params=SamplingParams(max_new_tokens=_NEW_TOKENS, temperature=0.0, ignore_eos=True),
        arrival_time=time.monotonic(),
    )


def _in_turn(repetitions: int, runs: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Medians, after one round to warm up."""
    rounds = [{way: run() for way, run in runs.items()} for _ in range(repetitions + 1)]
    return {way: median([found[way] for found in rounds[1:]]) for way in runs}


if __name__ == "__main__":
    main()

"""`python -m benchmarks.step_overhead`: what a step costs outside the CPU kernels.

Batches of 16, 64 and 256 sequences decode, and from each step's time what was spent in kernels is taken off. What
remains is scheduling, planning, sampling, outputs, and calling the kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.aggregates import StepTime, describe_steps
from benchmarks.checkpoint import checkpoint_or_smollm2, resolve_serve_arguments
from benchmarks.errors import BenchmarkError, SetupError
from benchmarks.interference import DISTURBED_SHARE
from benchmarks.loaded_engine import settings_of
from benchmarks.machine import describe_machine, versions
from benchmarks.repetition import measured, report_progress
from model_providers.megatron_import import import_megatron
from model_providers.notices import silence_upstream_notices
from server.config import ResolvedDocument
from server.request import EngineRequest, SamplingParams

if TYPE_CHECKING:
    from model_providers.kernels.library import CallSeconds
    from server.engine.engine import Engine

BATCH_SIZES = (16, 64, 256)
_PROMPT_TOKENS, _NEW_TOKENS = 64, 32
_QUIET_WAIT = 20.0


def measure(load: Path | None, dtype: str, threads: int | None, batch_sizes: Sequence[int]) -> dict[str, Any]:
    """The result as JSON values: by batch size, milliseconds of steps that decode all sequences. SetupError."""
    arguments = ["--load", str(checkpoint_or_smollm2(load)), "--dtype", dtype, "--no-prefix-caching"]
    document = resolve_serve_arguments([*arguments, *(() if threads is None else ("--threads", str(threads)))])
    engine, seconds = _load(document)
    _decode(engine, seconds, 1)  # to warm up
    points = [_measure(engine, seconds, batch_size) for batch_size in batch_sizes]
    return {
        "benchmark": "step_overhead",
        "by_batch": points,
        **settings_of(document),
        "checkpoint": document.checkpoint.path,
        "num_disturbed": sum(point["foreign_cpu_share"] >= DISTURBED_SHARE for point in points),
        "versions": versions(),
        "machine": describe_machine(),
    }


def _load(document: ResolvedDocument) -> tuple[Engine, CallSeconds]:
    silence_upstream_notices()
    import_megatron()
    import torch

    from model_providers.kernels.library import load_kernels
    from model_providers.parallel import join_world_of_one
    from server.engine.build import build_rank
    from server.engine.warmup import warm_up

    kernels = load_kernels(document.values["kernels"])
    if kernels is None:
        raise SetupError("there are no kernels whose time could be taken off")
    torch.set_num_threads(document.values["threads"])
    join_world_of_one()
    built = build_rank(document)
    warm_up(built)
    return built.engine, kernels.add_up_seconds()


def _measure(engine: Engine, seconds: CallSeconds, batch_size: int) -> dict[str, Any]:
    steps, foreign = measured(partial(_decode, engine, seconds, batch_size), _QUIET_WAIT)
    whole, outside = (describe_steps([step[i] for step in steps]) for i in (0, 1))
    report_progress(f"batch {batch_size}: {outside['median']:.2f} of {whole['median']:.1f} ms outside the kernels")
    return {"batch_size": batch_size, "step_ms": whole, "outside_ms": outside, "foreign_cpu_share": foreign}


def _decode(engine: Engine, seconds: CallSeconds, batch_size: int) -> list[tuple[StepTime, StepTime]]:
    """Of each step that decodes the whole batch: its time, and its time outside the kernels."""
    refused = engine.add([_request(number) for number in range(batch_size)])
    if refused:
        raise SetupError(f"the engine refused a request: {refused[0].error}")
    num_tokens = 0
    steps = []
    while engine.has_work:
        all_have_begun = num_tokens >= batch_size and engine.stats().num_waiting == 0
        before, started = seconds.total, time.perf_counter()
        outputs = engine.step()
        elapsed = time.perf_counter() - started
        num_tokens += len(outputs)
        if all_have_begun and len(outputs) == batch_size:
            outside = elapsed - (seconds.total - before)
            steps.append((StepTime(elapsed, batch_size), StepTime(outside, batch_size)))
    return steps


def _request(number: int) -> EngineRequest:
    params = SamplingParams(max_new_tokens=_NEW_TOKENS, temperature=0.0, ignore_eos=True)
    # No two are alike. The ids are below 10, which every vocabulary has.
    prompt = [*map(int, f"{number:04}"), *(position % 10 for position in range(_PROMPT_TOKENS - 4))]
    return EngineRequest(request_id=str(number), prompt_token_ids=prompt, params=params, arrival_time=time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_overhead", description=__doc__)
    parser.add_argument("--load", type=Path, default=None, help="checkpoint; default: SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None, help="write the whole result there")
    arguments = parser.parse_args()
    try:
        result = measure(arguments.load, arguments.dtype, arguments.threads, BATCH_SIZES)
    except BenchmarkError as error:
        sys.exit(f"step_overhead: {error}")
    table = Table("batch", "step, ms", "outside kernels, ms", "p95", title="Decode steps")
    for point in result["by_batch"]:
        whole, outside = point["step_ms"], point["outside_ms"]
        numbers = (whole["median"], outside["median"], outside["p95"])
        table.add_row(str(point["batch_size"]), *(f"{number:.2f}" for number in numbers))
    Console().print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

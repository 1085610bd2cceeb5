"""`megaserve bench sweep`: how cost grows with the batch, with the context, and with the number of waiting requests."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from benchmarks.aggregates import describe_steps, median
from benchmarks.checkpoint import checkpoint_or_smollm2, resolve_serve_arguments
from benchmarks.errors import SetupError
from benchmarks.interference import DISTURBED_SHARE
from benchmarks.loaded_engine import load_engine, settings_of
from benchmarks.machine import describe_machine, versions
from benchmarks.messages import Generate
from benchmarks.options import Options
from benchmarks.prompts import encoder_of
from benchmarks.repetition import measured, report_progress
from benchmarks.scheduler_cost import NUM_WAITING, scheduler_step
from benchmarks.sweep_charts import draw_sweep
from benchmarks.worker_process import WorkerProcess
from benchmarks.workload import cut_prompts

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
BATCH_CONTEXT = 128
CONTEXT_BATCH = 4
NEW_TOKENS = 32


def run_sweep(options: Options) -> dict[str, Any]:
    """The result as JSON values, and charts in `options.draw`. Raises BenchmarkError."""
    if options.draw is not None and not options.draw.is_dir():
        raise SetupError(f"--draw {options.draw}: no such directory")
    document = resolve_serve_arguments(options.serve_arguments(checkpoint_or_smollm2(options.load)))
    longest = min(options.max_context, document.values["max_model_len"])
    if longest < CONTEXTS[0]:
        raise SetupError(f"the shortest context of a sweep has {CONTEXTS[0]} tokens; this model takes {longest}")
    by_batch, by_context = _points(options.max_batch, longest)
    with ExitStack() as stack:
        report_progress("megaserve: loading")
        encode = encoder_of(document)
        prompts = {point: cut_prompts(encode, [point[1] - NEW_TOKENS] * point[0]) for point in (*by_batch, *by_context)}
        worker = load_engine(stack, document, prompts[by_batch[0]])
        worker.generate(Generate(max_new_tokens=NEW_TOKENS))  # to warm up
        measurements = {point: _measure(worker, *point, prompts[point], options) for point in prompts}
    report_progress(f"the scheduler alone, with up to {NUM_WAITING[-1]} waiting requests")
    result = {
        "benchmark": "sweep",
        "by_batch": [measurements[point] for point in by_batch],
        "by_context": [measurements[point] for point in by_context],
        "scheduler": [scheduler_step(num_waiting) for num_waiting in NUM_WAITING],
        "new_tokens": NEW_TOKENS,
        **settings_of(document),
        "checkpoint": document.checkpoint.path,
        "num_disturbed": sum(point["foreign_cpu_share"] >= DISTURBED_SHARE for point in measurements.values()),
        "versions": versions(),
        "machine": describe_machine(),
    }
    if options.draw is not None:
        draw_sweep(result, options.draw)
    return result


def _points(max_batch: int, max_context: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Batch size and context of every point: along the batch, and along the context."""
    by_batch = [(size, BATCH_CONTEXT) for size in BATCH_SIZES if size <= max_batch]
    by_context = [(min(CONTEXT_BATCH, max_batch), context) for context in CONTEXTS if context <= max_context]
    return by_batch, by_context


def _measure(
    worker: WorkerProcess, batch_size: int, context: int, prompts: list[list[int]], options: Options
) -> dict[str, Any]:
    """context: tokens of each sequence at its end. step_ms: of steps that decode all sequences and do nothing else."""
    command = Generate(max_new_tokens=NEW_TOKENS, prompts=prompts)
    runs = [measured(lambda: worker.generate(command), options.quiet_wait) for _ in range(options.repetitions)]
    steps = [step for outcome, _ in runs for step in outcome.decode_steps if step.batch_size == batch_size]
    step_ms = describe_steps(steps)
    decoded = batch_size / step_ms["median"] * 1000 if steps else None
    report_progress(f"batch {batch_size}, context {context}: {decoded or 0:.1f} tokens/s while decoding")
    return {
        "batch_size": batch_size,
        "context": context,
        "decode_tokens_per_second": decoded,
        "output_tokens_per_second": batch_size * NEW_TOKENS / median([outcome.seconds for outcome, _ in runs]),
        "step_ms": step_ms,
        "pss_bytes": worker.pss_bytes(),
        "foreign_cpu_share": max(share for _, share in runs),
    }

"""`python -m benchmarks.step_overhead`: what a step costs beside its arithmetic.

A random Llama with SmolLM2's 30 layers and hardly anything to multiply (hidden size 64) decodes batches of 16, 64 and
256. Scheduling, planning, a kernel's call after another, sampling and outputs are those of a real model, so a whole
step's time is a bound from above on what is not arithmetic.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.aggregates import describe_steps
from benchmarks.checkpoint import resolve_serve_arguments
from benchmarks.errors import BenchmarkError, SetupError
from benchmarks.interference import DISTURBED_SHARE
from benchmarks.loaded_engine import load_engine, settings_of
from benchmarks.machine import describe_machine, versions
from benchmarks.messages import Generate
from benchmarks.repetition import measured, report_progress
from benchmarks.worker_process import WorkerProcess
from server.process_lifetime import bound_command

BATCH_SIZES = (16, 64, 256)
NUM_LAYERS = 30
_NEW_TOKENS = 64
_QUIET_WAIT = 20.0


def measure(repetitions: int, threads: int | None, batch_sizes: Sequence[int] = BATCH_SIZES) -> dict[str, Any]:
    """The result as JSON values: by batch size, milliseconds of the steps that decode all sequences."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="megaserve-overhead-")))
        report_progress("making a model of 30 thin layers")
        _make_model(directory)
        arguments = ["--load", str(directory / "megatron"), "--no-prefix-caching"]
        if threads is not None:
            arguments += ["--threads", str(threads)]
        document = resolve_serve_arguments(arguments)
        worker = load_engine(stack, document, _prompts(1))
        worker.generate(Generate(max_new_tokens=_NEW_TOKENS))  # to warm up
        points = [_measure(worker, size, repetitions) for size in batch_sizes]
        return {
            "benchmark": "step_overhead",
            "num_layers": NUM_LAYERS,
            "by_batch": points,
            **settings_of(document),
            "num_disturbed": sum(point["foreign_cpu_share"] >= DISTURBED_SHARE for point in points),
            "versions": versions(),
            "machine": describe_machine(),
        }


def _measure(worker: WorkerProcess, batch_size: int, repetitions: int) -> dict[str, Any]:
    command = Generate(max_new_tokens=_NEW_TOKENS, prompts=_prompts(batch_size))
    runs = [measured(partial(worker.generate, command), _QUIET_WAIT) for _ in range(repetitions)]
    step_ms = describe_steps([step for run, _ in runs for step in run.decode_steps if step.batch_size == batch_size])
    report_progress(f"batch {batch_size}: {step_ms['median']:.2f} ms a step")
    return {"batch_size": batch_size, "step_ms": step_ms, "foreign_cpu_share": max(share for _, share in runs)}


def _make_model(directory: Path) -> None:
    """In a process of its own: torch and its threads stay out of this one, which measures others."""
    sizes = ["--num-layers", str(NUM_LAYERS), "--hidden-size", "64"]
    command = [sys.executable, "-m", "benchmarks.random_llama", str(directory), *sizes]
    done = subprocess.run(bound_command(command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"the model could not be made:\n{done.stderr.strip()[-2000:]}")


def _prompts(count: int) -> list[list[int]]:
    """No two are alike. The ids are below 10, for the vocabulary is small."""
    return [[*map(int, f"{number:03}"), *(position % 10 for position in range(61))] for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_overhead", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    try:
        result = measure(arguments.repetitions, arguments.threads)
    except BenchmarkError as error:
        sys.exit(f"step_overhead: {error}")
    table = Table("batch", "step, ms", "p95", title="A step without arithmetic to speak of")
    for point in result["by_batch"]:
        times = point["step_ms"]
        table.add_row(str(point["batch_size"]), f"{times['median']:.2f}", f"{times['p95']:.2f}")
    Console().print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

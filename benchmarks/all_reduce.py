"""`python -m benchmarks.all_reduce`: what tensor-parallel ranks pay for their sums, by torch.distributed and by ours.

Both ways run in turn in the same ranks: sums of messages from one token to a prefill, then decode steps of a whole
engine that are full of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.checkpoint import resolve_serve_arguments
from benchmarks.errors import BenchmarkError, MeasurementError
from benchmarks.interference import ForeignCpu
from benchmarks.machine import describe_machine, versions
from model_providers.notices import silence_upstream_notices
from server.process_lifetime import bound_command

WAYS = ("torch", "shared_memory")
# Of SmolLM2's depth and nearly its width; unlike SmolLM2's, its heads divide among two ranks.
_NUM_LAYERS, _HIDDEN_SIZE = 30, 512
_TIMEOUT = 1800.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print tables, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.all_reduce", description=__doc__)
    parser.add_argument(
        "--load", type=Path, metavar="DIR", help="Megatron checkpoint; default: a random Llama, made here"
    )
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each rank; default: %(default)s")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="of the engine; default: %(default)s")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole result there")
    arguments = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="megaserve-bench-") as directory:
            checkpoint = arguments.load or _random_llama(Path(directory))
            flags = ["--threads", str(arguments.threads), "--dtype", arguments.dtype]
            result = measure(checkpoint, arguments.ranks, arguments.repetitions, flags)
    except BenchmarkError as error:
        print(f"all_reduce: {error}", file=sys.stderr)
        return error.exit_status
    print_result(result, Console())
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1))
    return 0


def _random_llama(directory: Path) -> Path:
    silence_upstream_notices()
    from benchmarks.random_llama import make_llama  # seconds of imports, which --help and --load need not wait for

    make_llama(directory, num_layers=_NUM_LAYERS, hidden_size=_HIDDEN_SIZE)
    return directory / "megatron"


def measure(checkpoint: Path, ranks: int, repetitions: int, flags: Sequence[str] = ()) -> dict[str, Any]:
    """sums: microseconds by size; decode: milliseconds a step by batch size. flags: more of `serve`'s.

    Raises BenchmarkError.
    """
    with tempfile.TemporaryDirectory(prefix="megaserve-bench-") as name:
        directory = Path(name)
        for way in WAYS:
            argv = ["--load", str(checkpoint), "--tensor-model-parallel-size", str(ranks), "--kv-cache-gb", "0.1"]
            document = resolve_serve_arguments([*argv, "--device", "cpu", "--all-reduce", way, *flags])
            (directory / f"{way}.json").write_bytes(document.to_json())
        watch = ForeignCpu()
        _run_ranks(directory, ranks, repetitions)
        measured: dict[str, Any] = json.loads((directory / "result.json").read_text())
        foreign = watch.share()
    return {
        "benchmark": "all_reduce",
        **measured,
        "ranks": ranks,
        "repetitions": repetitions,
        **{setting: document.values[setting] for setting in ("dtype", "threads")},
        "foreign_cpu_share": round(foreign, 3),
        "machine": describe_machine(),
        "versions": versions(),
    }


def _run_ranks(directory: Path, ranks: int, repetitions: int) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
        *("-m", "benchmarks.all_reduce_rank", str(directory), str(repetitions)),
    ]
    try:
        done = subprocess.run(bound_command(command), capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"the ranks have not ended after {_TIMEOUT:g} seconds") from None
    if done.returncode != 0:
        raise MeasurementError(f"the ranks failed:\n{done.stderr[-4000:]}")


def print_result(result: dict[str, Any], console: Console) -> None:
    """Medians."""
    sums = Table(title=f"Sum over {result['ranks']} ranks, microseconds")
    decode = Table(title=f"Decode step, {result['ranks']} ranks of {result['threads']} threads, {result['dtype']}, ms")
    _fill(sums, ("dtype", "rows", "columns"), result["sums"])
    _fill(decode, ("batch size",), result["decode"])
    console.print(sums)
    console.print(decode)
    console.print(f"other processes used {result['foreign_cpu_share']:.0%} of the cores")


def _fill(table: Table, names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    for column in (*names, *WAYS, "times faster"):
        table.add_column(column, justify="right")
    for row in rows:
        by_torch, shared = (row[way] for way in WAYS)
        cells = (*(str(row[name]) for name in names), f"{by_torch:.1f}", f"{shared:.1f}", f"{by_torch / shared:.2f}")
        table.add_row(*cells)


if __name__ == "__main__":
    sys.exit(main())

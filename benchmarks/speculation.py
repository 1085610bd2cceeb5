"""`python -m benchmarks.speculation`: what --speculative-tokens gains where answers repeat their prompt, or not.

Two engines are loaded, one that guesses and one that does not, and asked in turn: prompts whose answers repeat them,
and W32's, whose answers need not. One request is under way at a time, then 8 are, of four times as many. In an engine
whose results do not depend on the batch both must give the same tokens, or the command fails.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.aggregates import median
from benchmarks.checkpoint import checkpoint_or_smollm2, resolve_serve_arguments, workload_for
from benchmarks.errors import BenchmarkError, MeasurementError
from benchmarks.interference import DISTURBED_SHARE
from benchmarks.loaded_engine import load_engine, settings_of
from benchmarks.machine import describe_machine, versions
from benchmarks.messages import Generate, Generated
from benchmarks.options import Options
from benchmarks.prompts import encoder_of
from benchmarks.repetition import measured, report_progress
from benchmarks.speculation_workload import repeating_prompts
from benchmarks.worker_process import WorkerProcess
from server.config import ResolvedDocument

CONCURRENCIES = (1, 8)
_REPEATED_TOKENS = 96


@dataclass(frozen=True)
class Work:
    """Every prompt gets exactly max_new_tokens tokens."""

    name: str
    prompts: list[list[int]]
    max_new_tokens: int

    def run(self, worker: WorkerProcess, concurrency: int) -> Generated:
        """A quarter of the prompts when they come one at a time, which takes longest."""
        prompts = self.prompts if concurrency > 1 else self.prompts[: max(1, len(self.prompts) // 4)]
        command = Generate(max_new_tokens=self.max_new_tokens, prompts=prompts, concurrency=concurrency)
        return worker.generate(command)


@dataclass
class Figures:
    """One work at one concurrency. rates: output tokens per second by repetition."""

    rates: dict[str, list[float]] = field(default_factory=lambda: {"off": [], "on": []})
    tokens: dict[str, list[list[int]]] = field(default_factory=dict)
    draft_tokens: int = 0
    accepted_tokens: int = 0
    foreign_cpu_shares: list[float] = field(default_factory=list)

    def take(self, contender: str, outcome: Generated, foreign: float) -> None:
        self.rates[contender].append(sum(map(len, outcome.token_ids)) / outcome.seconds)
        self.tokens[contender] = outcome.token_ids
        self.foreign_cpu_shares.append(foreign)
        if contender == "on":  # the same in every repetition
            self.draft_tokens = outcome.draft_tokens
            self.accepted_tokens = outcome.accepted_tokens

    def describe(self) -> dict[str, Any]:
        speedups = [on / off for off, on in zip(self.rates["off"], self.rates["on"], strict=True)]
        return {
            "output_tokens_per_second": {name: median(rates) for name, rates in self.rates.items()},
            "speedup": {"median": median(speedups), "min": min(speedups), "max": max(speedups)},
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
            "acceptance_rate": self.accepted_tokens / self.draft_tokens if self.draft_tokens else None,
            "num_equal_sequences": sum(a == b for a, b in zip(self.tokens["off"], self.tokens["on"], strict=True)),
            "num_sequences": len(self.tokens["off"]),
            "rates": self.rates,
            "foreign_cpu_shares": self.foreign_cpu_shares,
            "num_disturbed": sum(share >= DISTURBED_SHARE for share in self.foreign_cpu_shares),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__)
    parser.add_argument("--load", type=Path, metavar="DIR", help="checkpoint; default: SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", choices=("fp32", "bf16"))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repetitions", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--num-prompts", type=int, default=32, help="of each work; default: %(default)s")
    parser.add_argument("--speculative-tokens", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--quiet-wait", type=float, default=20.0, help="see `megaserve bench offline --help`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole result there")
    arguments = parser.parse_args(argv)
    names = ("load", "dtype", "threads", "repetitions", "num_prompts", "quiet_wait")
    options = Options(**{name: getattr(arguments, name) for name in names})
    try:
        result = measure(options, arguments.speculative_tokens)
    except BenchmarkError as error:
        parser.exit(1, f"{parser.prog}: error: {error}\n")
    print_result(result)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1))
    return 0


def measure(options: Options, speculative_tokens: int) -> dict[str, Any]:
    """The result as JSON values. Raises BenchmarkError."""
    serve_arguments = options.serve_arguments(checkpoint_or_smollm2(options.load))
    documents = {
        "off": resolve_serve_arguments(serve_arguments),
        "on": resolve_serve_arguments([*serve_arguments, "--speculative-tokens", str(speculative_tokens)]),
    }
    document = documents["on"]
    works = _works(document, options.num_prompts)
    figures = {(work.name, concurrency): Figures() for work in works for concurrency in CONCURRENCIES}
    with ExitStack() as stack:
        report_progress("megaserve: loading it twice")
        workers = {name: load_engine(stack, document, works[0].prompts) for name, document in documents.items()}
        for worker in workers.values():
            worker.generate(Generate(max_new_tokens=4))
        for _ in range(options.repetitions):
            for work in works:
                for concurrency in CONCURRENCIES:
                    _alternate(work, concurrency, workers, figures[work.name, concurrency], options.quiet_wait)
    described = {
        work.name: {str(concurrency): figures[work.name, concurrency].describe() for concurrency in CONCURRENCIES}
        for work in works
    }
    _check_equal(document, described)
    return {
        "benchmark": "speculation",
        "speculative_tokens": speculative_tokens,
        "work": described,
        **settings_of(document),
        "checkpoint": document.checkpoint.path,
        "versions": versions(),
        "machine": describe_machine(),
    }


def print_result(result: dict[str, Any]) -> None:
    """A line for each work and concurrency."""
    table = Table(title=f"Up to {result['speculative_tokens']} guesses, {result['dtype']}, output tokens/s")
    for number, column in enumerate(("answers", "at a time", "off", "on", "times faster", "guessed", "accepted")):
        table.add_column(column, justify="right" if number else "left")
    for name, by_concurrency in result["work"].items():
        for concurrency, values in by_concurrency.items():
            rates, speedup, rate = values["output_tokens_per_second"], values["speedup"], values["acceptance_rate"]
            ratio = f"{speedup['median']:.2f} ({speedup['min']:.2f} to {speedup['max']:.2f})"
            accepted = "" if rate is None else f"{rate:.0%}"
            cells = (f"{rates['off']:.1f}", f"{rates['on']:.1f}", ratio, str(values["draft_tokens"]), accepted)
            table.add_row(name, concurrency, *cells)
    Console().print(table)


def _works(document: ResolvedDocument, num_prompts: int) -> tuple[Work, Work]:
    w32 = workload_for(document, num_prompts, max_new_tokens=64)
    repeating = repeating_prompts(encoder_of(document), num_prompts)
    return Work("repeating", repeating, _REPEATED_TOKENS), Work("W32", w32.prompts, w32.max_new_tokens)


def _alternate(
    work: Work, concurrency: int, workers: dict[str, WorkerProcess], figures: Figures, quiet_wait: float
) -> None:
    for name, worker in workers.items():
        outcome, foreign = measured(partial(work.run, worker, concurrency), quiet_wait)
        figures.take(name, outcome, foreign)
        rate = figures.rates[name][-1]
        report_progress(f"{work.name}, {concurrency} at a time, guesses {name}: {rate:.1f} tokens/s")


def _check_equal(document: ResolvedDocument, described: dict[str, dict[str, dict[str, Any]]]) -> None:
    values = document.values
    if values["device"] != "cpu" or values["kernels"] == "off" or not values["batch_invariant"]:
        return  # near-ties may tip over
    for name, by_concurrency in described.items():
        for concurrency, figures in by_concurrency.items():
            if figures["num_equal_sequences"] != figures["num_sequences"]:
                raise MeasurementError(f"{name}, {concurrency} at a time: guesses changed what was generated")


if __name__ == "__main__":
    raise SystemExit(main())

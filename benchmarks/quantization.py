"""What `--quantize` gains and what it costs: every format in turn on the same work.

`python -m benchmarks.quantization [--load DIR] [--dtype fp32|bf16] [--threads N] [--repetitions N] [--json FILE]`.
One worker process for each format. Time: one sequence decoding, and W32. Accuracy: perplexity of the standard library's
text, and multiple-choice questions by likelihood, asked as `megaserve evaluate --offline` asks them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.aggregates import median
from benchmarks.checkpoint import checkpoint_or_smollm2, resolve_serve_arguments, workload_for
from benchmarks.errors import BenchmarkError, SetupError
from benchmarks.interference import DISTURBED_SHARE
from benchmarks.loaded_engine import load_engine, settings_of
from benchmarks.machine import describe_machine, versions
from benchmarks.messages import Generate, Score
from benchmarks.options import Options
from benchmarks.prompts import encoder_of
from benchmarks.quantization_accuracy import QUESTIONS, Answers, answer_questions, perplexity
from benchmarks.repetition import measured, report_progress
from benchmarks.report import check_json_path, write_json
from benchmarks.worker_process import WorkerProcess
from benchmarks.workload import Workload, cut_prompts
from evaluation.argument_types import not_negative, positive
from server.config import ResolvedDocument

FORMATS = ("none", "int8")
DECODE_PROMPT, DECODED_TOKENS = 64, 64
TEXT_PIECES, PIECE_TOKENS = 16, 512


@dataclass
class Contender:
    """One format of the weights: its worker, and what was measured of it, repetition by repetition."""

    name: str
    worker: WorkerProcess
    decode_ms: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)
    foreign_cpu_shares: list[float] = field(default_factory=list)
    peak_rss_bytes: int = 0

    def measure(self, workload: Workload, quiet_wait: float) -> None:
        (decode_ms, rate), foreign = measured(lambda: (self._decode_ms(workload), self._rate(workload)), quiet_wait)
        self.decode_ms.append(decode_ms)
        self.tokens_per_second.append(rate)
        self.foreign_cpu_shares.append(foreign)
        report_progress(
            f"{self.name}: {decode_ms:.2f} ms a token alone, {rate:.1f} tokens/s together, other processes used "
            f"{foreign:.0%} of the cores"
        )

    def _decode_ms(self, workload: Workload) -> float:
        """Of one sequence: the time for its tokens less that for the first."""
        prompt = max(workload.prompts, key=len)[:DECODE_PROMPT]
        first, all_ = (
            self.worker.generate(Generate(max_new_tokens=count, prompts=[prompt])).seconds
            for count in (1, 1 + DECODED_TOKENS)
        )
        return (all_ - first) / DECODED_TOKENS * 1000

    def _rate(self, workload: Workload) -> float:
        command = Generate(max_new_tokens=workload.max_new_tokens, prompts=workload.prompts)
        outcome = self.worker.generate(command)
        self.peak_rss_bytes = max(self.peak_rss_bytes, outcome.peak_rss_bytes)
        return workload.num_output_tokens / outcome.seconds

    def figures(self) -> dict[str, Any]:
        loaded = self.worker.loaded
        return {
            "decode_ms": median(self.decode_ms),
            "output_tokens_per_second": median(self.tokens_per_second),
            "peak_rss_bytes": self.peak_rss_bytes,
            "growth_bytes": loaded.rss_ready_bytes - loaded.rss_after_imports_bytes,
            "weights_bytes": loaded.weights_bytes,
            "load_seconds": loaded.load_seconds,
            "repetitions": {
                "decode_ms": self.decode_ms,
                "output_tokens_per_second": self.tokens_per_second,
                "foreign_cpu_share": self.foreign_cpu_shares,
            },
        }


def run_quantization(options: Options, questions: Path) -> dict[str, Any]:
    """The result as JSON values. Raises BenchmarkError."""
    arguments = options.serve_arguments(checkpoint_or_smollm2(options.load))
    documents = {name: resolve_serve_arguments([*arguments, "--quantize", name]) for name in FORMATS}
    document = documents["none"]
    workload = workload_for(document, options.num_prompts, options.max_new_tokens)
    length = min(PIECE_TOKENS, document.values["max_model_len"] - 1)  # an engine always generates one more
    pieces = cut_prompts(encoder_of(document), [length] * TEXT_PIECES)
    score = Score(num_scored_tokens=[length - 1] * TEXT_PIECES)
    with ExitStack() as stack:
        contenders = [_load(stack, name, documents[name], pieces) for name in FORMATS]
        for contender in contenders:  # a step of every shape: allocators and caches fill up
            contender.worker.generate(Generate(max_new_tokens=2, prompts=workload.prompts))
        for _ in range(options.repetitions):
            for contender in contenders:  # in turn, so that a change of the machine's speed meets all of them
                contender.measure(workload, options.quiet_wait)
        perplexities = {contender.name: perplexity(contender.worker.score(score), score) for contender in contenders}
    answers = {name: _answers(name, questions, documents[name]) for name in FORMATS}
    return {
        "benchmark": "quantization",
        "formats": {
            contender.name: {
                **contender.figures(),
                "perplexity": perplexities[contender.name],
                "score": answers[contender.name].score,
                "num_changed_answers": answers[contender.name].num_other_than(answers["none"]),
            }
            for contender in contenders
        },
        "num_text_tokens": sum(score.num_scored_tokens),
        "num_questions": len(answers["none"].predictions),
        "workload": workload.describe(),
        "num_disturbed": sum(share >= DISTURBED_SHARE for c in contenders for share in c.foreign_cpu_shares),
        "checkpoint": document.checkpoint.path,
        **settings_of(document),
        "versions": versions(),
        "machine": describe_machine(),
    }


def _load(stack: ExitStack, name: str, document: ResolvedDocument, pieces: list[list[int]]) -> Contender:
    report_progress(f"{name}: loading")
    worker = load_engine(stack, document, pieces)
    return Contender(name, worker)


def _answers(name: str, questions: Path, document: ResolvedDocument) -> Answers:
    report_progress(f"{name}: answering {questions.name}")
    return answer_questions(questions, document)


def table(result: dict[str, Any]) -> Table:
    """A column for each format."""
    formats = result["formats"]
    shown = Table(title=f"--quantize, {result['workload']['name']}, {result['dtype']}")
    for number, name in enumerate(("", *formats)):
        shown.add_column(name, justify="right" if number else "left")
    rows: tuple[tuple[str, str, float, str], ...] = (
        ("one sequence, ms/token", "decode_ms", 1, ".2f"),
        (f"{result['workload']['num_prompts']} sequences, output tokens/s", "output_tokens_per_second", 1, ".1f"),
        ("memory, growth until ready, MB", "growth_bytes", 1e-6, ".0f"),
        ("peak memory, MB", "peak_rss_bytes", 1e-6, ".0f"),
        (f"perplexity of {result['num_text_tokens']} tokens", "perplexity", 1, ".4f"),
        (f"right of {result['num_questions']} questions, %", "score", 100, ".1f"),
        ("other answers", "num_changed_answers", 1, "d"),
    )
    for title, key, factor, style in rows:
        shown.add_row(title, *(format(figures[key] * factor, style) for figures in formats.values()))
    machine = result["machine"]
    shown.caption = f"{machine['cpu_model']}, {result['threads']} threads of {machine['cores']} cores"
    if result["num_disturbed"]:
        shown.caption += f"; {result['num_disturbed']} repetitions disturbed by other processes"
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table -> the exit status. `argv`: without the program's name; None takes sys.argv."""
    values = vars(_parser().parse_args(argv))
    questions = values.pop("questions")
    options = Options(**values)
    try:
        if not questions.is_file():
            raise SetupError(f"--questions {questions}: no such file")
        if options.json is not None:
            check_json_path(options.json)
        result = run_quantization(options, questions)
        Console().print(table(result))
        if options.json is not None:
            write_json(options.json, result)
    except BenchmarkError as error:
        print(f"benchmarks.quantization: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantization",
        description="Measure speed, memory and accuracy of quantized weights, in turn with those as they are.",
    )
    parser.add_argument("--load", type=Path, metavar="DIR", help="Megatron checkpoint; default: SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], help="of activations; default: fp32")
    parser.add_argument("--threads", type=positive, metavar="N", help="default: the cores this process may use")
    parser.add_argument(
        "--repetitions", type=positive, default=Options.repetitions, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--quiet-wait", type=not_negative, default=Options.quiet_wait, metavar="S", help="default: %(default)s"
    )
    parser.add_argument("--questions", type=Path, default=QUESTIONS, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole result there")
    return parser


if __name__ == "__main__":
    sys.exit(main())

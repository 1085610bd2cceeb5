"""`megaserve bench vlm`: questions about pictures, in turn with Hugging Face's implementation of the same model."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.aggregates import median
from benchmarks.checkpoint import resolve_serve_arguments
from benchmarks.errors import MeasurementError, SetupError
from benchmarks.machine import describe_machine, versions
from benchmarks.messages import Generate, Generated, Load
from benchmarks.options import HUGGING_FACE_BATCH_SIZES, Options
from benchmarks.repetition import Repetition, measured, num_disturbed, report_progress
from benchmarks.vlm_model import TOKENIZER
from benchmarks.vlm_questions import MAX_NEW_TOKENS, VlmWorkload, make_vlm_workload
from benchmarks.worker_process import WorkerProcess
from server.frontend.tokenizer import PromptTokenizer
from server.process_lifetime import bound_command


@dataclass
class Contender:
    """A loaded worker, and how it is told to work."""

    name: str
    worker: WorkerProcess
    command: Generate
    repetitions: list[Repetition] = field(default_factory=list)
    outcomes: list[Generated] = field(default_factory=list)

    def measure(self, num_questions: int, quiet_wait: float) -> None:
        outcome, foreign = measured(lambda: self.worker.generate(self.command), quiet_wait)
        self.outcomes.append(outcome)
        self.repetitions.append(Repetition(outcome.seconds, num_questions * MAX_NEW_TOKENS / outcome.seconds, foreign))
        report_progress(
            f"{self.name}: {num_questions / outcome.seconds:.1f} questions/s, other processes used {foreign:.0%} "
            "of the cores"
        )

    def questions_per_second(self) -> float:
        return median([repetition.output_tokens_per_second for repetition in self.repetitions]) / MAX_NEW_TOKENS


def run_vlm(options: Options) -> dict[str, Any]:
    """The result as JSON values. Raises BenchmarkError."""
    tokenizer = PromptTokenizer.load(TOKENIZER)
    image_token_id = tokenizer.backend.token_to_id("<image>")
    assert image_token_id is not None, "the demo checkpoint's tokenizer has it"
    workload = make_vlm_workload(tokenizer.encode, image_token_id, options.num_questions)
    with tempfile.TemporaryDirectory(prefix="megaserve-bench-") as directory, ExitStack() as stack:
        _make_models(Path(directory))
        ours, theirs, settings = _load(stack, Path(directory), workload, options)
        for contender in (ours, *theirs):
            contender.worker.generate(contender.command)  # every shape once: allocators and kernel caches fill up
        for _ in range(options.repetitions):
            for contender in (ours, *theirs):
                contender.measure(len(workload.prompts), options.quiet_wait)
    return _result(workload, ours, theirs, settings)


def _make_models(directory: Path) -> None:
    """In a process of its own: torch and its threads stay out of this one, which measures others."""
    report_progress("making a random model of the demo checkpoint's shape, and importing it")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.vlm_model", str(directory)]
    done = subprocess.run(bound_command(command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"the model could not be made: {done.stderr.strip()[-2000:]}")


def _load(
    stack: ExitStack, directory: Path, workload: VlmWorkload, options: Options
) -> tuple[Contender, list[Contender], dict[str, Any]]:
    document = resolve_serve_arguments(options.serve_arguments(directory / "megatron", prefix_caching=True))
    settings: dict[str, Any] = {name: document.values[name] for name in ("dtype", "device", "threads")}
    document_file = directory / "document.json"
    document_file.write_bytes(document.to_json())

    def start(kind: str, model: Path) -> WorkerProcess:
        load = Load(model=str(model), prompts=workload.prompts, pictures=workload.pictures, **settings)
        worker = stack.enter_context(WorkerProcess(kind, load))
        report_progress(f"{kind}: loading {settings['dtype']}, {settings['threads']} threads")
        worker.load()
        return worker

    ours = Contender("megaserve", start("engine", document_file), Generate(max_new_tokens=MAX_NEW_TOKENS))
    theirs = start("hugging_face_vlm", directory / "hf")
    contenders = [
        Contender(
            f"hugging_face {size}" + (", features reused" if reuse else ""),
            theirs,
            Generate(max_new_tokens=MAX_NEW_TOKENS, batch_size=size, encode_each_once=reuse),
        )
        for reuse in (False, True)
        for size in HUGGING_FACE_BATCH_SIZES
    ]
    return ours, contenders, settings


def _result(
    workload: VlmWorkload, ours: Contender, theirs: Sequence[Contender], settings: dict[str, Any]
) -> dict[str, Any]:
    usual, reusing = (
        max((c for c in theirs if c.command.encode_each_once is reuse), key=Contender.questions_per_second)
        for reuse in (False, True)
    )
    pairs = zip(ours.outcomes[-1].token_ids, usual.outcomes[-1].token_ids, strict=True)
    num_equal = sum(mine == yours for mine, yours in pairs)
    if settings["dtype"] == "fp32" and num_equal < len(workload.prompts):
        raise MeasurementError(f"only {num_equal} of {len(workload.prompts)} answers are Hugging Face's")
    rate = ours.questions_per_second()
    return {
        "benchmark": "vlm",
        "questions_per_second": rate,
        "cached_tokens": ours.outcomes[-1].cached_tokens,
        "peak_rss_bytes": max(outcome.peak_rss_bytes for outcome in ours.outcomes),
        "hugging_face": {
            "questions_per_second": {c.name.removeprefix("hugging_face "): c.questions_per_second() for c in theirs},
            "ratio": rate / usual.questions_per_second(),
            "ratio_features_reused": rate / reusing.questions_per_second(),
            "num_equal_answers": num_equal,
            "peak_rss_bytes": max(outcome.peak_rss_bytes for c in theirs for outcome in c.outcomes),
        },
        **settings,
        "workload": workload.describe(),
        "repetitions": {c.name: [r.describe() for r in c.repetitions] for c in (ours, *theirs)},
        "num_disturbed": sum(num_disturbed(c.repetitions) for c in (ours, *theirs)),
        "versions": versions(),
        "machine": describe_machine(),
    }

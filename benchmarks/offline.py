"""`megaserve bench offline`: the engine without HTTP, and Hugging Face's `generate` in turn with it."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.aggregates import describe_steps
from benchmarks.checkpoint import checkpoint_or_smollm2, hugging_face_directory, resolve_serve_arguments, workload_for
from benchmarks.errors import MeasurementError, SetupError
from benchmarks.machine import describe_machine, versions
from benchmarks.messages import Generate, Generated, Load, Loaded
from benchmarks.options import HUGGING_FACE_BATCH_SIZES, Options
from benchmarks.repetition import Repetition, measured, num_disturbed, report_progress, throughput
from benchmarks.worker_process import WorkerProcess
from benchmarks.workload import Workload
from server.config import ResolvedDocument

_WARM_UP_TOKENS = 4
_SHAPE = ("num_layers", "num_attention_heads", "num_query_groups", "kv_channels")


@dataclass
class Contender:
    """What takes part: a loaded worker, and in which static batches it runs (None: it makes its own)."""

    name: str
    worker: WorkerProcess
    loaded: Loaded
    batch_size: int | None = None
    repetitions: list[Repetition] = field(default_factory=list)
    outcomes: list[Generated] = field(default_factory=list)

    def warm_up(self) -> None:
        """Every shape of the prompts once, and a few decode steps: allocators and kernel caches fill up."""
        self.worker.generate(Generate(max_new_tokens=_WARM_UP_TOKENS, batch_size=self.batch_size))

    def measure(self, workload: Workload, quiet_wait: float) -> None:
        command = Generate(max_new_tokens=workload.max_new_tokens, batch_size=self.batch_size)
        outcome, foreign = measured(lambda: self.worker.generate(command), quiet_wait)
        rate = workload.num_output_tokens / outcome.seconds
        self.outcomes.append(outcome)
        self.repetitions.append(Repetition(outcome.seconds, rate, foreign))
        report_progress(f"{self.name}: {rate:.1f} output tokens/s, other processes used {foreign:.0%} of the cores")


def run_offline(options: Options) -> dict[str, Any]:
    """The result as JSON values. Raises BenchmarkError."""
    checkpoint = checkpoint_or_smollm2(options.load)
    hf_directory = None
    if options.compare_hf:
        hf_directory = hugging_face_directory(options.load, options.hf_directory)
    document = resolve_serve_arguments(options.serve_arguments(checkpoint))
    _require_one_rank(document)
    workload = workload_for(document, options.num_prompts, options.max_new_tokens)
    with ExitStack() as stack:
        contenders = _load(stack, document, workload, hf_directory)
        for contender in contenders:
            contender.warm_up()
        for _ in range(options.repetitions):
            for contender in contenders:  # in turn, so that a change of the machine's speed meets all of them
                contender.measure(workload, options.quiet_wait)
    return _result(document, workload, contenders)


def _require_one_rank(document: ResolvedDocument) -> None:
    size = document.values["tensor_model_parallel_size"]
    if size != 1:
        raise SetupError(f"bench offline runs one rank, not {size}; bench http measures tensor parallelism")


def _load(
    stack: ExitStack, document: ResolvedDocument, workload: Workload, hf_directory: Path | None
) -> list[Contender]:
    """One worker after another, so that none is timed while another loads."""
    values = document.values
    settings: dict[str, Any] = {name: values[name] for name in ("dtype", "device", "threads")}

    def start(kind: str, model: Path) -> tuple[WorkerProcess, Loaded]:
        load = Load(model=str(model), prompts=workload.prompts, **settings)
        worker = stack.enter_context(WorkerProcess(kind, load))
        report_progress(f"{kind}: loading {values['dtype']}, {values['threads']} threads")
        return worker, worker.load()

    with tempfile.TemporaryDirectory(prefix="megaserve-bench-") as directory:
        document_file = Path(directory) / "document.json"
        document_file.write_bytes(document.to_json())
        contenders = [Contender("megaserve", *start("engine", document_file))]
    if hf_directory is not None:
        worker, loaded = start("hugging_face", hf_directory)
        contenders += [Contender(f"hugging_face {n}", worker, loaded, n) for n in HUGGING_FACE_BATCH_SIZES]
    return contenders


def _result(document: ResolvedDocument, workload: Workload, contenders: list[Contender]) -> dict[str, Any]:
    ours, *theirs = contenders
    if any(outcome.cached_tokens for outcome in ours.outcomes):
        raise MeasurementError("prompt tokens came from the prefix cache, which has to be off")
    rate = throughput(ours.repetitions)
    steps = [step for outcome in ours.outcomes for step in outcome.decode_steps]
    result: dict[str, Any] = {
        "benchmark": "offline",
        "output_tokens_per_second": rate,
        "total_tokens_per_second": rate * (1 + workload.num_prompt_tokens / workload.num_output_tokens),
        "step_ms": describe_steps(steps),
        **_footprint(ours),
        "dtype": document.values["dtype"],
        "threads": document.values["threads"],
        "device": document.values["device"],
        "quantize": document.values["quantize"],
        "prefix_caching": document.values["prefix_caching"],
        "checkpoint": document.checkpoint.path,
        "model": {name: document.values[name] for name in _SHAPE},
        "workload": workload.describe(),
        "repetitions": [repetition.describe() for repetition in ours.repetitions],
        "num_disturbed": sum(num_disturbed(contender.repetitions) for contender in contenders),
        "versions": versions(),
        "machine": describe_machine(),
    }
    if theirs:
        result["hugging_face"] = _compare(ours, theirs)
    return result


def _footprint(contender: Contender) -> dict[str, Any]:
    loaded = contender.loaded
    growth = loaded.rss_ready_bytes - loaded.rss_after_imports_bytes
    return {
        "peak_rss_bytes": max(outcome.peak_rss_bytes for outcome in contender.outcomes),
        "load_seconds": loaded.load_seconds,
        "memory": {
            "rss_after_imports_bytes": loaded.rss_after_imports_bytes,
            "rss_ready_bytes": loaded.rss_ready_bytes,
            "growth_bytes": growth,
            "weights_bytes": loaded.weights_bytes,
            "growth_over_weights": growth / loaded.weights_bytes,
        },
    }


def _compare(ours: Contender, theirs: list[Contender]) -> dict[str, Any]:
    """ratio: our throughput over the better of their batch sizes, medians both.

    num_equal_sequences: of the better one's last outcome, those whose tokens are ours. In bf16 near-ties tip over.
    """
    better = max(theirs, key=lambda contender: throughput(contender.repetitions))
    pairs = zip(ours.outcomes[-1].token_ids, better.outcomes[-1].token_ids, strict=True)
    return {
        "output_tokens_per_second": {str(c.batch_size): throughput(c.repetitions) for c in theirs},
        "better_batch_size": better.batch_size,
        "better_output_tokens_per_second": throughput(better.repetitions),
        "ratio": throughput(ours.repetitions) / throughput(better.repetitions),
        "repetitions": {str(c.batch_size): [r.describe() for r in c.repetitions] for c in theirs},
        "num_equal_sequences": sum(mine == yours for mine, yours in pairs),
        **_footprint(better),
    }

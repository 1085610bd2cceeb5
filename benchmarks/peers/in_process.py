"""Ours and the peers without HTTP, in turn: each in a process of its own, loaded once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.errors import MeasurementError
from benchmarks.messages import Generate, Generated, Load
from benchmarks.options import HUGGING_FACE_BATCH_SIZES
from benchmarks.peers import measurements as m
from benchmarks.peers.catalog import PEERS, TRANSFORMERS
from benchmarks.peers.left_out import LeftOut
from benchmarks.peers.measurements import Measurements
from benchmarks.repetition import measured, report_progress
from benchmarks.worker_process import WorkerProcess, WorkerProgram
from benchmarks.workload import Workload
from server.config import ResolvedDocument

_WARM_UP_TOKENS = 4
_DECODED_TOKENS = 64


@dataclass(frozen=True)
class Probes:
    """Single prompts. decode: short, to be continued. first_token: of 512 tokens."""

    decode: list[int]
    first_token: list[int]


@dataclass(frozen=True)
class Work:
    """What every contender does in every round."""

    document: ResolvedDocument
    hf_directory: Path
    workload: Workload
    probes: Probes

    @property
    def settings(self) -> dict[str, Any]:
        return {name: self.document.values[name] for name in ("dtype", "device", "threads")}


@dataclass
class Contender:
    """A loaded worker. batch_sizes: static ones, of which the fastest counts; None batches by itself."""

    name: str
    worker: WorkerProcess
    batch_sizes: tuple[int | None, ...] = (None,)
    last: Generated | None = field(default=None, repr=False)

    def warm_up(self, work: Work) -> None:
        for size in self.batch_sizes:
            self.worker.generate(Generate(max_new_tokens=_WARM_UP_TOKENS, batch_size=size))
        self._seconds(work.probes.first_token, 1)

    def measure(self, work: Work, results: Measurements) -> None:
        """One round."""
        outcomes = [
            self.worker.generate(Generate(max_new_tokens=work.workload.max_new_tokens, batch_size=size))
            for size in self.batch_sizes
        ]
        self.last = min(outcomes, key=lambda outcome: outcome.seconds)
        results.add(m.OFFLINE, self.name, work.workload.num_output_tokens / self.last.seconds)
        first = self._seconds(work.probes.decode, 1)
        all_of_them = self._seconds(work.probes.decode, 1 + _DECODED_TOKENS)
        results.add(m.DECODE, self.name, (all_of_them - first) / _DECODED_TOKENS * 1000)
        results.add(m.TTFT, self.name, self._seconds(work.probes.first_token, 1) * 1000)

    def measure_memory(self, results: Measurements) -> None:
        """Raises MeasurementError when it has ended."""
        assert self.last is not None
        if not (pss_bytes := self.worker.pss_bytes()):
            raise MeasurementError("the worker ended after its last round")
        results.add(m.PROCESS_RSS, self.name, self.last.peak_rss_bytes)
        results.add(m.PROCESS_PSS, self.name, pss_bytes)

    def _seconds(self, prompt: list[int], max_new_tokens: int) -> float:
        return self.worker.generate(Generate(max_new_tokens=max_new_tokens, prompts=[prompt])).seconds


@dataclass
class InProcessOutcome:
    """equal_sequences: by peer, for how many prompts it generated our tokens. left_out: by peer, why it is missing."""

    equal_sequences: dict[str, int]
    left_out: dict[str, str]


def compare_in_process(
    work: Work, peers: Sequence[str], repetitions: int, quiet_wait: float, results: Measurements
) -> InProcessOutcome:
    """Raises BenchmarkError when ours fails; a peer that fails, at any time, is left out."""
    left_out = LeftOut(results, m.IN_PROCESS_METRICS)
    with ExitStack() as stack:
        contenders: list[Contender] = []
        for name in (m.OURS, *peers):
            with left_out.if_it_fails(name):
                contenders.append(_load(stack, name, work, results))
        for _ in range(repetitions):
            for contender in left_out.rest_of(contenders):  # in turn: a change of the machine's speed meets all of them
                with left_out.if_it_fails(contender.name):
                    _measure(contender, work, quiet_wait, results)
        for contender in left_out.rest_of(contenders):
            with left_out.if_it_fails(contender.name):
                contender.measure_memory(results)
    ours, *others = left_out.rest_of(contenders)
    return InProcessOutcome({contender.name: _num_equal(ours, contender) for contender in others}, left_out.reasons)


def _measure(contender: Contender, work: Work, quiet_wait: float, results: Measurements) -> None:
    _, foreign = measured(partial(contender.measure, work, results), quiet_wait)
    results.add_foreign_share(contender.name, foreign)
    report_progress(f"{contender.name}: {_latest(contender, results)}, others used {foreign:.0%} of the cores")


def _load(stack: ExitStack, name: str, work: Work, results: Measurements) -> Contender:
    """One after another, so that none is timed while another loads."""
    report_progress(f"{name}: loading")
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="megaserve-bench-")))
    kind, model, program = _program(name, work, directory)
    load = Load(model=str(model), prompts=work.workload.prompts, **work.settings)
    started = time.perf_counter()
    worker = stack.enter_context(WorkerProcess(kind, load, program))
    worker.load()
    results.add(m.PROCESS_START, name, time.perf_counter() - started)
    contender = Contender(name, worker, HUGGING_FACE_BATCH_SIZES if name == TRANSFORMERS else (None,))
    contender.warm_up(work)
    return contender


def _program(name: str, work: Work, directory: Path) -> tuple[str, Path, WorkerProgram | None]:
    if name == m.OURS:
        file = directory / "document.json"
        file.write_bytes(work.document.to_json())
        return "engine", file, None
    if name == TRANSFORMERS:
        return "hugging_face", work.hf_directory, None
    peer = PEERS[name]
    model = peer.convert(peer.environment, work.hf_directory, work.settings["dtype"])
    variables = peer.environment_variables(work.settings["threads"])
    return name, model, WorkerProgram(peer.worker_command(), variables)


def _num_equal(ours: Contender, peer: Contender) -> int:
    assert ours.last is not None and peer.last is not None
    return sum(mine == yours for mine, yours in zip(ours.last.token_ids, peer.last.token_ids, strict=True))


def _latest(contender: Contender, results: Measurements) -> str:
    return ", ".join(
        f"{results.values[metric.name][contender.name][-1]:.1f} {unit}"
        for metric, unit in ((m.OFFLINE, "output tokens/s"), (m.DECODE, "ms/token"), (m.TTFT, "ms to a first token"))
    )

"""Peers that fail: their values are dropped, the reason is kept, and the comparison goes on without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.errors import BenchmarkError
from benchmarks.peers.measurements import OURS, Measurements, Metric
from benchmarks.repetition import report_progress


class Named(Protocol):
    name: str


@dataclass
class LeftOut:
    """metrics: those that a comparison measures. reasons: by peer, why it is missing from them."""

    results: Measurements
    metrics: Sequence[Metric]
    reasons: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def if_it_fails(self, name: str) -> Iterator[None]:
        """A BenchmarkError inside leaves this peer out. Ours is what is compared, so its failure is raised."""
        try:
            yield
        except BenchmarkError as error:
            if name == OURS:
                raise
            self.reasons[name] = str(error).removeprefix(f"{name}: ")
            self.results.forget(name, self.metrics)  # rounds that it did not finish cannot be paired with ours
            report_progress(f"{name} is left out: {self.reasons[name]}")

    def rest_of[Contender: Named](self, contenders: Iterable[Contender]) -> list[Contender]:
        """Those that have not failed."""
        return [contender for contender in contenders if contender.name not in self.reasons]

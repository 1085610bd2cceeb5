"""One timed repetition and its circumstances."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.aggregates import median
from benchmarks.interference import DISTURBED_SHARE, ForeignCpu, wait_until_quiet


@dataclass(frozen=True)
class Repetition:
    """foreign_cpu_share: what other processes used of all cores meanwhile."""

    seconds: float
    output_tokens_per_second: float
    foreign_cpu_share: float

    def describe(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "output_tokens_per_second": self.output_tokens_per_second,
            "foreign_cpu_share": round(self.foreign_cpu_share, 3),
            "disturbed": self.foreign_cpu_share >= DISTURBED_SHARE,
        }


def measured[Result](run: Callable[[], Result], quiet_wait: float) -> tuple[Result, float]:
    """What `run` returns, and the foreign share of the processors while it ran.

    quiet_wait: seconds to wait at most for other processes to pause first.
    """
    wait_until_quiet(quiet_wait)
    watch = ForeignCpu()
    result = run()
    return result, watch.share()


def throughput(repetitions: Sequence[Repetition]) -> float:
    """Median output tokens per second over all repetitions, disturbed ones included: none is picked out."""
    return median([repetition.output_tokens_per_second for repetition in repetitions])


def num_disturbed(repetitions: Sequence[Repetition]) -> int:
    return sum(repetition.foreign_cpu_share >= DISTURBED_SHARE for repetition in repetitions)


def report_progress(text: str) -> None:
    """On standard error: standard output is for the result."""
    print(text, file=sys.stderr, flush=True)

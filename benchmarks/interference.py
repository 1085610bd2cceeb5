"""How much of the machine other processes used meanwhile: figures taken beside other work must say so.

Foreign is all processor time of the machine less that of this process and its descendants, as a share of all cores.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import psutil

DISTURBED_SHARE = 0.06
"""From here on a measurement counts as disturbed: about an eighth of a core on a machine with two."""

_SAMPLE_SECONDS = 0.7


class CpuSample(NamedTuple):
    """Seconds: of the clock, of all processors' work since boot, and of this process's and its descendants' work."""

    clock: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> CpuSample:
        return cls(time.perf_counter(), _busy_seconds(), _own_seconds())


def foreign_share(before: CpuSample, after: CpuSample, cores: int) -> float:
    """0 when nothing else ran in between, 1 when other processes had all cores. The kernel counts in steps of 10 ms."""
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, foreign / ((after.clock - before.clock) * cores)))


class ForeignCpu:
    """Watches from its creation on."""

    def __init__(self) -> None:
        self._before = CpuSample.now()

    def share(self) -> float:
        return foreign_share(self._before, CpuSample.now(), os.cpu_count() or 1)


def wait_until_quiet(seconds: float) -> bool:
    """Wait at most so long for other processes to pause; whether they have. 0 does not wait."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        watch = ForeignCpu()
        time.sleep(_SAMPLE_SECONDS)
        if watch.share() < DISTURBED_SHARE:
            return True
    return False


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _own_seconds() -> float:
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # ended since it was listed
            continue
        # Of a process's ended children, too, once it has waited for them.
        total += times.user + times.system + times.children_user + times.children_system
    return total

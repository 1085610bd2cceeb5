"""What is told about the machine, and about others that use it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from benchmarks.interference import CpuSample, ForeignCpu, foreign_share, wait_until_quiet
from benchmarks.machine import describe_machine, peak_rss_bytes, versions
from benchmarks.repetition import Repetition, num_disturbed, throughput


@pytest.mark.parametrize(
    ("busy", "own", "share"),
    [(0.0, 0.0, 0.0), (20.0, 20.0, 0.0), (15.0, 10.0, 0.25), (20.0, 0.0, 1.0), (9.9, 10.0, 0.0), (21.0, 0.0, 1.0)],
)
def test_foreign_share_is_what_is_left_of_all_work(busy: float, own: float, share: float) -> None:
    before = CpuSample(clock=100, busy=1000, own=50)
    after = CpuSample(clock=110, busy=1000 + busy, own=50 + own)
    assert foreign_share(before, after, cores=2) == pytest.approx(share)


def test_work_of_a_child_process_is_one_s_own() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "sum(range(10**7)); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        before = CpuSample.now()
        child.stdout.readline()
        after = CpuSample.now()
        child.stdin.write(b"\n")
    assert after.own > before.own
    assert after.busy >= before.busy
    assert 0 <= ForeignCpu().share() <= 1


def test_without_patience_there_is_no_waiting() -> None:
    assert wait_until_quiet(0) is False


def test_disturbed_repetitions_are_counted_and_kept() -> None:
    repetitions = [Repetition(1.0, rate, share) for rate, share in ((10.0, 0.0), (20.0, 0.3), (60.0, 0.01))]
    assert throughput(repetitions) == 20.0
    assert num_disturbed(repetitions) == 1
    assert [repetition.describe()["disturbed"] for repetition in repetitions] == [False, True, False]


def test_machine_and_versions() -> None:
    machine = describe_machine()
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["memory_bytes"] == psutil.virtual_memory().total
    assert machine["cpu_model"]
    assert machine["instruction_sets"]
    assert {"python", "torch", "transformers", "megatron-core", "megaserve"} <= versions().keys()
    assert "unknown" not in versions().values()


def test_peak_memory_is_at_least_what_is_resident_now() -> None:
    resident = psutil.Process().memory_info().rss
    assert resident <= peak_rss_bytes(os.getpid()) + 2**20
    with pytest.raises(ProcessLookupError):
        peak_rss_bytes(2**22 + 1)  # beyond the kernel's largest process id

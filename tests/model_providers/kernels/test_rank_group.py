"""Collectives through shared memory against torch's sums and concatenations, with threads of one process as ranks.

The kernels give up the interpreter's lock, so the ranks really run side by side; processes take the same paths.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_providers.kernels.library import Kernels
from model_providers.kernels.rank_group import SLOT_BYTES, RankGroup, segment_bytes

several = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
sizes = st.sampled_from([2, 3])
# Slots that a few numbers fill, so that messages go in many pieces, and the product's.
slots = st.sampled_from([64, 192, SLOT_BYTES])


def groups(size: int, *, slot_bytes: int = SLOT_BYTES, timeout: float = 60.0) -> list[RankGroup]:
    segment = mmap.mmap(-1, segment_bytes(size, slot_bytes))
    return [RankGroup(segment, rank=rank, size=size, timeout=timeout, slot_bytes=slot_bytes) for rank in range(size)]


def on_every_rank[Result](ranks: list[RankGroup], run: Callable[[RankGroup], Result]) -> list[Result]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def randn(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 100).to(dtype)


@several
@given(
    size=sizes,
    slot_bytes=slots,
    count=st.sampled_from([0, 1, 3, 8, 15, 16, 17, 31, 32, 33, 96, 577, 4096]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_sums_are_in_the_order_of_ranks_and_rounded_once(
    kernels: Kernels, size: int, slot_bytes: int, count: int, dtype: torch.dtype
) -> None:
    parts = [randn(count, dtype=dtype, seed=rank) for rank in range(size)]
    expected = parts[0].float()
    for part in parts[1:]:
        expected = expected + part.float()
    on_every_rank(groups(size, slot_bytes=slot_bytes), lambda group: kernels.all_reduce(group, parts[group.rank]))
    for part in parts:
        assert torch.equal(part, expected.to(dtype))


def test_a_message_of_many_full_slots(kernels: Kernels) -> None:
    """Large enough for the sums to be shared out among the threads of a rank, too."""
    parts = [randn(512, 577, dtype=torch.float32, seed=rank) for rank in range(2)]
    expected = parts[0] + parts[1]
    on_every_rank(groups(2), lambda group: kernels.all_reduce(group, parts[group.rank]))
    assert all(torch.equal(part, expected) for part in parts)


@several
@given(
    size=sizes,
    slot_bytes=slots,
    rows=st.sampled_from([0, 1, 2, 5, 40]),
    columns=st.sampled_from([1, 3, 16, 33, 300]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.uint8]),
)
def test_shards_are_joined_by_columns_where_they_are_wanted(
    kernels: Kernels, size: int, slot_bytes: int, rows: int, columns: int, dtype: torch.dtype
) -> None:
    shards = [randn(rows, columns, dtype=torch.float32, seed=rank).abs().to(dtype) for rank in range(size)]

    def gather(group: RankGroup) -> Tensor | None:
        out = None if group.rank == 1 else torch.empty(rows, size * columns, dtype=dtype)
        kernels.gather_shards(group, shards[group.rank], out)
        return out

    gathered = on_every_rank(groups(size, slot_bytes=slot_bytes), gather)
    for rank, out in enumerate(gathered):
        assert out is None if rank == 1 else torch.equal(out, torch.cat(shards, dim=1))


@pytest.mark.parametrize("size", [2, 3])
def test_many_calls_in_a_row_never_mix(kernels: Kernels, size: int) -> None:
    """Sums of changing lengths and gathers in turn; a slot written too early or read too late would show."""

    def run(group: RankGroup) -> list[int]:
        wrong = []
        for call in range(3000):
            length = call % 37 + 1
            part = torch.full((length,), float(call * (group.rank + 1)))
            kernels.all_reduce(group, part)
            out = torch.empty(1, size)
            kernels.gather_shards(group, torch.tensor([[float(call + group.rank)]]), out)
            expected = [float(call + rank) for rank in range(size)]
            if not (part == call * size * (size + 1) / 2).all() or out.tolist() != [expected]:
                wrong.append(call)
        return wrong

    # Few numbers a slot, so that both of them are in use within a call.
    assert on_every_rank(groups(size, slot_bytes=64), run) == [[]] * size


def test_the_count_of_pieces_wraps_around(kernels: Kernels) -> None:
    segment = mmap.mmap(-1, segment_bytes(2))
    ranks = [RankGroup(segment, rank=rank, size=2, timeout=5.0) for rank in range(2)]
    last = 2**32 - 3
    for group in ranks:
        group.pieces = last
        ctypes.c_uint32.from_buffer(segment, segment_bytes(1, 0) * group.rank).value = last  # RankState.arrived

    def run(group: RankGroup) -> list[float]:
        sums = []
        for call in range(6):
            part = torch.full((4,), float(call))
            kernels.all_reduce(group, part)
            sums.append(part[3].item())
        return sums

    assert on_every_rank(ranks, run) == [[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]] * 2
    assert ranks[0].pieces == 3


def test_a_rank_that_comes_late_is_waited_for(kernels: Kernels) -> None:
    def run(group: RankGroup) -> Tensor:
        for _ in range(3):
            time.sleep(0.15 * group.rank)  # beyond the looks in a loop: the others sleep
            part = torch.ones(10)
            kernels.all_reduce(group, part)
        return part

    assert all(part.tolist() == [3.0] * 10 for part in on_every_rank(groups(3), run))


def test_a_rank_that_does_not_come_is_given_up(kernels: Kernels) -> None:
    (first, _) = groups(2, timeout=0.1)
    with pytest.raises(RuntimeError, match=r"rank 1 took no part in a collective for 0\.1 seconds"):
        kernels.all_reduce(first, torch.ones(10))
    with pytest.raises(RuntimeError, match="rank 1 took no part"):
        kernels.gather_shards(first, torch.ones(1, 10), None)


def test_a_rank_whose_process_ends_is_given_up_at_once(kernels: Kernels) -> None:
    segment = mmap.mmap(-1, segment_bytes(2))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        group = RankGroup(segment, rank=0, size=2, timeout=600.0, processes=[-1, os.pidfd_open(process.pid)])
        killer = threading.Timer(0.2, process.send_signal, [signal.SIGKILL])
        killer.start()
        # Longer than a test may take would be the timeout, so this one has not waited for it.
        with pytest.raises(RuntimeError, match="the process of rank 1 has ended"):
            kernels.all_reduce(group, torch.ones(10))
        killer.join()


def test_ranks_in_different_collectives_are_told(kernels: Kernels) -> None:
    def run(group: RankGroup) -> str:
        try:
            kernels.all_reduce(group, torch.ones(10 + group.rank))
        except RuntimeError as error:
            return str(error)
        return ""

    errors = on_every_rank(groups(2, timeout=5.0), run)
    assert errors == ["rank 1 is in another collective than rank 0", "rank 0 is in another collective than rank 1"]


def test_pidfds_are_closed_with_the_group() -> None:
    pidfd = os.pidfd_open(os.getpid())
    group = RankGroup(mmap.mmap(-1, segment_bytes(2)), rank=0, size=2, timeout=1.0, processes=[-1, pidfd])
    os.fstat(pidfd)
    del group
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)

"""Ranks that meet, ranks that do not come, and ranks that give up, over a store as torch.distributed has it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from evaluation.errors import RanksError, SetupError
from evaluation.offline.ranks import Ranks


def make_ranks(world_size, tensor_parallel_size=1, timeout=20.0, store=None):
    store = store or dist.HashStore()
    size = {"world_size": world_size, "tensor_parallel_size": tensor_parallel_size}
    return [Ranks(store, rank=rank, timeout=timeout, **size) for rank in range(world_size)]


def together(ranks, work):
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(work, ranks))


def test_replicas_and_their_leaders():
    ranks = make_ranks(6, tensor_parallel_size=2)
    assert [one.replica for one in ranks] == [0, 0, 1, 1, 2, 2]
    assert [one.is_leader for one in ranks] == [True, False] * 3
    assert list(ranks[0].leaders) == [0, 2, 4]
    with pytest.raises(SetupError, match="6 ranks are no whole number of replicas"):
        make_ranks(6, tensor_parallel_size=4)


def test_the_slowest_is_waited_for():
    ranks = make_ranks(3)

    def come(rank):
        time.sleep(0.2 * (rank.rank == 1))
        return rank.barrier("here")

    waited = together(ranks, come)
    assert waited[0] > 0.1 and waited[2] > 0.1
    assert waited[1] < 0.1


def test_who_does_not_come_is_named():
    ranks = make_ranks(3, timeout=0.2)
    with pytest.raises(RanksError, match=r"rank 2 did not come within 0.2 seconds to the barrier 'generate_until'"):
        together(ranks[:2], lambda rank: rank.barrier("generate_until"))


def test_nobody_waits_for_a_rank_that_gave_up():
    ranks = make_ranks(2, timeout=60.0)
    ranks[1].give_up("its engine failed")
    started = time.monotonic()
    with pytest.raises(RanksError, match="rank 1 gave up: its engine failed"):
        ranks[0].barrier("generate_until")
    assert time.monotonic() - started < 30


def test_gathered_by_replica_whatever_comes_first():
    ranks = make_ranks(4, tensor_parallel_size=2)

    def give(rank):
        time.sleep(0.1 * (rank.rank == 0))
        return rank.gather("answers", f"of {rank.rank}")

    assert together([ranks[0], ranks[2]], give) == [["of 0", "of 2"], []]


def test_sessions_do_not_see_each_other():
    ranks = make_ranks(2, timeout=0.2)
    for session in range(2):
        for rank in ranks:
            rank.begin_session()
        ranks[0].publish("questions", f"größer {session}")
        assert ranks[1].receive("questions") == f"größer {session}"
        together(ranks, lambda rank: rank.barrier("done"))
    ranks[0].begin_session()
    with pytest.raises(RanksError, match="rank 1 did not come"):
        ranks[0].barrier("done")


def test_alone_without_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    alone = Ranks.of_environment(1, 1.0)
    assert (alone.rank, alone.num_replicas, alone.barrier("here") < 1.0) == (0, 1, True)
    with pytest.raises(SetupError, match="1 ranks are no whole number of replicas"):
        Ranks.of_environment(2, 1.0)


def test_half_an_environment_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(SetupError, match="MASTER_ADDR, MASTER_PORT; torchrun sets all of them"):
        Ranks.of_environment(1, 1.0)

"""A rank's process before it has an order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from server.ipc import RankOrder
from server.launch_group import LaunchedGroup
from server.launch_rank import StandbyRank


def order(directory: Path) -> RankOrder:
    return RankOrder(
        rank=0,
        world_size=1,
        rendezvous=str(directory / "rendezvous"),
        document=str(directory / "no-document"),
        socket=str(directory / "no-socket"),
    )


@contextmanager
def standing_by() -> Iterator[tuple[StandbyRank, psutil.Process]]:
    """One, and its process: this one has other children, too."""
    others = set(psutil.Process().children())
    with StandbyRank() as standby:
        (process,) = set(psutil.Process().children()) - others
        yield standby, process


def test_without_an_order_it_ends_with_its_context() -> None:
    with standing_by() as (standby, process):
        assert standby.is_waiting
    assert not process.is_running()


def test_an_order_is_carried_out_once_and_outlives_the_context(tmp_path: Path) -> None:
    with StandbyRank() as standby:
        process = standby.begin(order(tmp_path))
        assert not standby.is_waiting
    assert process.wait(120) != 0, "there is no such document"


def test_the_death_of_a_process_before_its_order_is_the_groups_end(tmp_path: Path) -> None:
    async def launch() -> str:
        group = LaunchedGroup([standby.begin(order(tmp_path))])
        try:
            return await group.ended()
        finally:
            await group.kill()

    with standing_by() as (standby, child):
        child.kill()
        while child.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert asyncio.run(launch()) == f"rank 0 (process {child.pid}) ended with SIGKILL"

"""The ranks of one start as operating-system processes: started, watched, and killed for certain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from server.config import ResolvedDocument
from server.ipc import RankOrder
from server.launch_rank import StandbyRank

logger = logging.getLogger(__name__)

_KILL_TIMEOUT = 10.0
"""Seconds for killed processes to be gone; the kernel frees large memories in less."""


class RankGroup(Protocol):
    """One start of all ranks."""

    async def ended(self) -> str:
        """Wait until a process of the group is gone; says which."""

    async def exited(self, grace_seconds: float) -> bool:
        """Wait until the group has exited by itself, after it was asked to; False when it has not in time."""

    async def kill(self) -> None:
        """Kill what is left and wait until it is gone."""


class LaunchedGroup:
    """Processes that this one started, by rank, each the leader of a session. They die with this process by themselves.

    None is waited for before `kill`: until then its process id, which is its group's too, cannot mean another one.
    """

    def __init__(self, ranks: Sequence[subprocess.Popen[bytes]]) -> None:
        """ranks: bound to this process (`server.process_lifetime`); nobody else waits for them."""
        self._ranks = list(ranks)
        loop = asyncio.get_running_loop()
        self._exits: list[asyncio.Future[str]] = [loop.create_future() for _ in ranks]
        for rank, process in enumerate(ranks):
            # Unlike a signal handler it does not depend on who else has children; it is readable after the end.
            descriptor = os.pidfd_open(process.pid)
            loop.add_reader(descriptor, self._note_exit, rank, descriptor)

    async def ended(self) -> str:
        await asyncio.wait(self._exits, return_when=asyncio.FIRST_COMPLETED)
        return next(exit.result() for exit in self._exits if exit.done())

    async def exited(self, grace_seconds: float) -> bool:
        _, left = await asyncio.wait(self._exits, timeout=grace_seconds)
        return not left

    async def kill(self) -> None:
        for process in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        _, left = await asyncio.wait(self._exits, timeout=_KILL_TIMEOUT)
        if left:
            logger.error("a killed rank is still there after %g s; its memory is not free yet", _KILL_TIMEOUT)
        for process in self._ranks:
            process.poll()

    def _note_exit(self, rank: int, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        found = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
        os.close(descriptor)
        assert found is not None, "a pidfd is readable from the end of its process on"
        status = f"exit status {found.si_status}"
        if found.si_code != os.CLD_EXITED:
            status = signal.Signals(found.si_status).name
        self._exits[rank].set_result(f"rank {rank} (process {found.si_pid}) ended with {status}")


def start_group(
    document: ResolvedDocument, document_file: Path, socket_file: Path, first_rank: StandbyRank
) -> LaunchedGroup:
    """Start all ranks, by processes of which one may be waiting already. Needs a running event loop."""
    size = int(document.values["tensor_model_parallel_size"])
    first = first_rank if first_rank.is_waiting else StandbyRank()
    ranks = [first, *(StandbyRank() for _ in range(size - 1))]
    return LaunchedGroup(
        [
            standby.begin(
                RankOrder(
                    rank=rank,
                    world_size=size,
                    rendezvous=str(socket_file.with_suffix(".rendezvous")),
                    document=str(document_file),
                    socket=str(socket_file),
                )
            )
            for rank, standby in enumerate(ranks)
        ]
    )

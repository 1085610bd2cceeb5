"""The ranks as operating-system processes: started through torchrun's launcher, watched, and killed for certain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from server.config import EngineConfig, ResolvedDocument
from server.process_lifetime import bound_command

logger = logging.getLogger(__name__)

_KILL_TIMEOUT = 10.0
"""Seconds for killed processes to be gone; the kernel frees large memories in less."""

_LAUNCHER_GRACE = 0.5
"""Seconds the launcher gets to exit by itself once its ranks have; it holds nothing worth waiting for."""


class RankGroup(Protocol):
    """One start of all ranks."""

    def watch_ranks(self, pids: Sequence[int]) -> None:
        """The processes whose death ends the group, once they are known."""

    async def ended(self) -> str:
        """Wait until a process of the group is gone; says which."""

    async def exited(self, grace_seconds: float) -> bool:
        """Wait until the group has exited by itself, after it was asked to; False when it has not in time."""

    async def kill(self) -> None:
        """Kill what is left and wait until it is gone."""


class LaunchedGroup:
    """A launcher process and the ranks under it.

    The launcher runs in a session of its own, so that Ctrl-C reaches the HTTP process alone, which then stops the
    ranks in order. Killing the launcher kills the ranks: each is bound to its parent (`server.process_lifetime`).
    """

    def __init__(self, launcher: asyncio.subprocess.Process) -> None:
        self._launcher = launcher
        self._rank_fds: dict[int, int] = {}  # pidfd by rank; unlike a pid it never means another process
        self._dead_rank: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> LaunchedGroup:
        """Start the launcher as a child that dies with this process."""
        launcher = await asyncio.create_subprocess_exec(
            *bound_command(command), stdin=asyncio.subprocess.DEVNULL, env=dict(environment), start_new_session=True
        )
        return cls(launcher)

    def watch_ranks(self, pids: Sequence[int]) -> None:
        for rank, pid in enumerate(pids):
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                self._note_death(rank, pid)
                continue
            self._rank_fds[rank] = fd
            asyncio.get_running_loop().add_reader(fd, self._note_death, rank, pid)

    async def ended(self) -> str:
        launcher = asyncio.ensure_future(self._launcher.wait())
        try:
            either: set[asyncio.Future[Any]] = {launcher, self._dead_rank}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._dead_rank.done():
                return self._dead_rank.result()
            return f"the ranks' launcher ended with {_describe_status(launcher.result())}"
        finally:
            launcher.cancel()

    async def exited(self, grace_seconds: float) -> bool:
        try:
            async with asyncio.timeout(grace_seconds):
                await asyncio.gather(*map(_readable, self._rank_fds.values()))
            async with asyncio.timeout(_LAUNCHER_GRACE):
                await self._launcher.wait()
        except TimeoutError:
            return False
        return True

    async def kill(self) -> None:
        loop = asyncio.get_running_loop()
        for fd in self._rank_fds.values():
            loop.remove_reader(fd)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._launcher.pid, signal.SIGKILL)
        await self._launcher.wait()
        try:
            async with asyncio.timeout(_KILL_TIMEOUT):
                await asyncio.gather(*map(_readable, self._rank_fds.values()))
        except TimeoutError:
            logger.error("a killed rank is still there after %g s; its memory is not free yet", _KILL_TIMEOUT)
        for fd in self._rank_fds.values():
            os.close(fd)
        self._rank_fds.clear()

    def _note_death(self, rank: int, pid: int) -> None:
        if rank in self._rank_fds:
            asyncio.get_running_loop().remove_reader(self._rank_fds[rank])
        if not self._dead_rank.done():
            self._dead_rank.set_result(f"rank {rank} (process {pid}) died")


def torchrun_command(document: ResolvedDocument, document_file: Path, socket_file: Path) -> list[str]:
    """One torchrun launcher on this machine, every rendezvous on a free port; its files go beside the document."""
    size = document.values["tensor_model_parallel_size"]
    log_directory = document_file.parent / "torchrun"
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)),
        *("--log-dir", str(log_directory)),
        *("-m", "server.engine.worker", "--document", str(document_file), "--socket", str(socket_file)),
    ]


def rank_environment(values: Mapping[str, Any]) -> dict[str, str]:
    """This process's environment, with the number of threads each rank computes with."""
    threads = EngineConfig.from_values(dict(values)).threads
    if threads is None:
        threads = max(1, len(os.sched_getaffinity(0)) // int(values["tensor_model_parallel_size"]))
    return os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


async def _readable(pidfd: int) -> None:
    """Wait until the process behind a pidfd has ended: from then on it is readable."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


def _describe_status(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

"""Serving under torchrun: rank 0 has the HTTP process as its child, and torchrun looks after the ranks.

`torchrun --nproc-per-node N -m server ARGS` runs `run_rank` in every rank; rank 0 starts this module as a program,
which is the HTTP process. Its standard input is a pipe that rank 0 closes when its engine has ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from server.arguments.preparse import preparse
from server.config import ResolvedDocument
from server.launch import listen, private_directory, resolve, run_command, run_resolved
from server.launch_group import RankGroup
from server.process_lifetime import bound_command, die_with_parent
from server.supervisor import socket_file_of_start

_DOCUMENT = "document.json"
_POLL_SECONDS = 0.05
_HTTP_EXIT_TIMEOUT = 10.0


def is_torchrun_rank() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def run_rank(argv: Sequence[str]) -> int:
    """One rank's life; its exit status."""
    die_with_parent()
    run = _run_first_rank if int(os.environ["RANK"]) == 0 else _run_other_rank
    return run_command(lambda: run(argv))


def _run_first_rank(argv: Sequence[str]) -> int:
    if preparse(argv).prints_only:
        return resolve(argv, None)
    with private_directory() as directory:
        command = [sys.executable, "-m", "server.launch_attached", str(directory), *argv]
        http = subprocess.Popen(bound_command(command), stdin=subprocess.PIPE)
        assert http.stdin is not None
        with _signals_forwarded_to(http):
            from server.engine import worker  # imports torch, while the HTTP process resolves

            if not _wait_for_document(http, directory / _DOCUMENT):
                return http.returncode
            status = worker.main(directory / _DOCUMENT, socket_file_of_start(directory, 1))
            http.stdin.close()
            return status or http.wait(_HTTP_EXIT_TIMEOUT)


def _run_other_rank(argv: Sequence[str]) -> int:
    """Follow rank 0, to the end too: torchrun passes a signal on to every rank, but rank 0 decides when all stop."""
    if preparse(argv).prints_only:
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    from server.engine import worker

    return worker.main(None, None)


@contextmanager
def _signals_forwarded_to(http: subprocess.Popen[bytes]) -> Iterator[None]:
    """SIGTERM and Ctrl-C are the HTTP process's to handle: it drains, then tells the engine to shut down."""

    def forward(number: int, frame: FrameType | None) -> None:
        http.send_signal(signal.SIGTERM)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait_for_document(http: subprocess.Popen[bytes], document: Path) -> bool:
    """Whether the HTTP process resolved its arguments; False when it has exited instead."""
    while not document.exists():
        if http.poll() is not None:
            return False
        time.sleep(_POLL_SECONDS)
    return True


class AttachedGroup:
    """The ranks this process is attached to. Rank 0 is its parent, whose death is this process's own."""

    def __init__(self) -> None:
        self._rank_0 = os.getppid()
        self._stopped_in_order = False

    async def ended(self) -> str:
        """Never returns: torchrun ends all ranks when one dies, and the kernel this process when rank 0 does."""
        await asyncio.Event().wait()
        raise AssertionError

    async def exited(self, grace_seconds: float) -> bool:
        """Wait for rank 0 to close the pipe."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()
        loop.add_reader(sys.stdin.fileno(), closed.set)
        try:
            await asyncio.wait_for(closed.wait(), grace_seconds)
            self._stopped_in_order = True
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(sys.stdin.fileno())
        return True

    async def kill(self) -> None:
        """Unless all ended in order, kill rank 0: torchrun then ends the others, and starts again if it was told to."""
        if not self._stopped_in_order and os.getppid() == self._rank_0:
            os.kill(self._rank_0, signal.SIGKILL)


def serve_attached(directory: Path, argv: Sequence[str]) -> int:
    """The HTTP process: bind, resolve into `directory`, serve; the exit status."""
    with listen(preparse(argv)) as listener:
        unfinished = directory / f"{_DOCUMENT}.part"
        status = resolve(argv, unfinished)
        if status != 0:
            return status
        document = ResolvedDocument.read(unfinished)
        unfinished.rename(directory / _DOCUMENT)  # rank 0 sees a whole document or none

        async def start_group(socket_file: Path) -> RankGroup:
            return AttachedGroup()

        return run_resolved(document, listener, directory, start_group)


if __name__ == "__main__":
    sys.exit(run_command(lambda: serve_attached(Path(sys.argv[1]), sys.argv[2:])))

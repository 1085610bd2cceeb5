"""A rank's process, started before it is known what it is to serve: its imports pass beside the resolver's."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Self

from server.ipc import RankOrder, encode
from server.process_lifetime import start_session


class StandbyRank:
    """A process that imports and waits for its order; a context manager, which ends one that got none."""

    def __init__(self) -> None:
        # NumPy's linear algebra is not used, but would start a thread for every core, in every rank.
        self._process: subprocess.Popen[bytes] | None = start_session(
            [sys.executable, "-m", "server.engine.worker"], stdin=subprocess.PIPE, OPENBLAS_NUM_THREADS="1"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    @property
    def is_waiting(self) -> bool:
        """Whether it can still be given an order, which happens once."""
        return self._process is not None

    def begin(self, order: RankOrder) -> subprocess.Popen[bytes]:
        """Have it serve; from here on the process is the caller's.

        One that has died meanwhile is not told anything: whoever watches it sees that.
        """
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None, "a rank gets one order"
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(encode(order))
        return process

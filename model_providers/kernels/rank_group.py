"""Ranks that share memory, as the kernels read them: `RankGroup` in source/rank_group.h, field by field."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

# sizeof(RankState) in source/rank_group.h.
_STATE_BYTES = 128
# Two a rank. Larger messages go in pieces; smaller slots stay in a core's second-level cache.
SLOT_BYTES = 2**18

_TIMED_OUT, _PROCESS_ENDED, _DISAGREED = 1, 2, 3


def segment_bytes(size: int, slot_bytes: int = SLOT_BYTES) -> int:
    """Memory that `size` ranks share."""
    return size * (_STATE_BYTES + 2 * slot_bytes)


class RankGroup(ctypes.Structure):
    """One rank's view. Keeps the mapping and the pidfds alive, and closes them when it goes."""

    _fields_: ClassVar = [
        ("memory", ctypes.c_void_p),
        ("processes", ctypes.c_void_p),
        ("slot_bytes", ctypes.c_int64),
        ("timeout", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("rank", "size")),
        ("pieces", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("outcome", "culprit")),
    ]

    def __init__(
        self,
        segment: mmap.mmap,
        *,
        rank: int,
        size: int,
        timeout: float,
        processes: Sequence[int] = (),
        slot_bytes: int = SLOT_BYTES,
    ) -> None:
        """segment: `segment_bytes(size, slot_bytes)` zeros that all ranks map. timeout: seconds.

        processes: a pidfd for each rank, -1 for those not to be watched; they are closed with this object.
        slot_bytes: a multiple of 64.
        """
        pidfds = (ctypes.c_int32 * len(processes))(*processes)
        super().__init__(
            memory=ctypes.addressof(ctypes.c_char.from_buffer(segment)),
            processes=ctypes.addressof(pidfds) if processes else None,
            slot_bytes=slot_bytes,
            timeout=timeout,
            rank=rank,
            size=size,
        )
        self._kept: list[Any] = [segment, pidfds]
        weakref.finalize(self, _close, tuple(processes))

    def check(self) -> None:
        """Raises RuntimeError when the last collective failed; none of this group can succeed after that."""
        if self.outcome == _TIMED_OUT:
            raise RuntimeError(f"rank {self.culprit} took no part in a collective for {self.timeout:g} seconds")
        if self.outcome == _PROCESS_ENDED:
            raise RuntimeError(f"the process of rank {self.culprit} has ended")
        if self.outcome == _DISAGREED:
            raise RuntimeError(f"rank {self.culprit} is in another collective than rank {self.rank}")


def _close(pidfds: Sequence[int]) -> None:
    for pidfd in pidfds:
        if pidfd >= 0:
            os.close(pidfd)

"""Collectives of ranks on one machine, through memory that they share.

The segment is an anonymous file of rank 0's, which the others open through /proc. It has no name, so nothing is left
behind however a process ends, and it does not count against /dev/shm, which containers keep small.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import torch.distributed as dist
from torch import Tensor

from model_providers.kernels.library import Kernels
from model_providers.kernels.rank_group import RankGroup, segment_bytes


class SharedMemoryError(Exception):
    """The ranks cannot share memory. is_unexpected: though they are on one machine and have the kernels."""

    def __init__(self, reason: str, *, is_unexpected: bool = False) -> None:
        super().__init__(reason)
        self.is_unexpected = is_unexpected


class SharedMemoryCollectives:
    """`backends.collectives.Collectives` over dense tensors on the CPU; sums of float32 and bfloat16.

    Parts are added up in float32, in the order of ranks, and rounded once.
    """

    def __init__(self, kernels: Kernels, group: RankGroup) -> None:
        self._kernels = kernels
        self._group = group

    @classmethod
    def form(cls, kernels: Kernels | None, group: dist.ProcessGroup, *, timeout: float) -> Self:
        """All ranks of `group` call it together. timeout: seconds to wait for a rank before raising RuntimeError.

        Raises SharedMemoryError, on all of them or on none.
        """
        rank_group = _form_rank_group(kernels is not None, group, timeout)
        assert kernels is not None, "without kernels on every rank no group is formed"
        return cls(kernels, rank_group)

    def all_reduce(self, part: Tensor) -> Tensor:
        """See `Collectives.all_reduce`."""
        part = part.contiguous()
        self._kernels.all_reduce(self._group, part)
        return part

    def all_gather(self, shard: Tensor) -> Tensor:
        """See `Collectives.all_gather`."""
        out = shard.new_empty(shard.shape[0], self._group.size * shard.shape[1])
        self._kernels.gather_shards(self._group, shard.contiguous(), out)
        return out

    def gather(self, shard: Tensor) -> Tensor | None:
        """See `Collectives.gather`."""
        if self._group.rank == 0:
            return self.all_gather(shard)
        self._kernels.gather_shards(self._group, shard.contiguous(), None)
        return None


class _Peer(NamedTuple):
    """What a rank tells the others of itself. machine: see `_this_machine`. segment: rank 0's file descriptor."""

    machine: str
    pid: int
    has_kernels: bool
    segment: int
    error: str


def _form_rank_group(has_kernels: bool, group: dist.ProcessGroup, timeout: float) -> RankGroup:
    own, error = -1, ""
    try:
        if group.rank() == 0:
            own = _make_segment(segment_bytes(group.size()))
    except OSError as failure:
        error = str(failure)
    try:
        peers = _exchange(group, _Peer(_this_machine(), os.getpid(), has_kernels, own, error))
        _check(peers)
        return _map(group, peers, timeout)
    finally:
        if own >= 0:
            os.close(own)


def _make_segment(size: int) -> int:
    """The descriptor of an anonymous file of zeros. Its memory is reserved: a page that is missing later would kill."""
    descriptor = os.memfd_create("megaserve-collectives", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _this_machine() -> str:
    """Equal for processes of one boot and one namespace of process ids, which can look each other up; else empty."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # a /proc that shows less; the ranks are taken for strangers
        return ""


def _check(peers: Sequence[_Peer]) -> None:
    """Raises SharedMemoryError. All ranks have the same peers, so they come to the same end."""
    if not all(peer.has_kernels for peer in peers):
        raise SharedMemoryError("it needs the CPU kernels, which are off, not built, or not for this number format")
    if len({peer.machine for peer in peers}) > 1 or not peers[0].machine:
        raise SharedMemoryError("the ranks are not on one machine, or in containers that hide them from each other")
    if peers[0].error:
        raise SharedMemoryError(f"the memory cannot be had: {peers[0].error}", is_unexpected=True)


def _map(group: dist.ProcessGroup, peers: Sequence[_Peer], timeout: float) -> RankGroup:
    mapped: RankGroup | None = None
    error = ""
    try:
        mapped = _mapped(group, peers, timeout)
    except OSError as failure:
        error = f"rank {group.rank()}: {failure}"
    errors = [found for found in _exchange(group, error) if found]
    if errors or mapped is None:
        raise SharedMemoryError(f"the memory cannot be shared: {errors[0]}", is_unexpected=True)
    return mapped


def _mapped(group: dist.ProcessGroup, peers: Sequence[_Peer], timeout: float) -> RankGroup:
    """Raises OSError, for example where a process may not look into rank 0's."""
    rank, size = group.rank(), group.size()
    descriptor = os.open(f"/proc/{peers[0].pid}/fd/{peers[0].segment}", os.O_RDWR | os.O_CLOEXEC)
    try:
        segment = mmap.mmap(descriptor, segment_bytes(size))
    finally:
        os.close(descriptor)
    pidfds = [-1 if peer == rank else os.pidfd_open(peers[peer].pid) for peer in range(size)]
    return RankGroup(segment, rank=rank, size=size, timeout=timeout, processes=pidfds)


def _exchange[Item](group: dist.ProcessGroup, own: Item) -> list[Item]:
    """Every rank's item by rank, on every rank."""
    items: list[Item] = [own] * group.size()
    dist.all_gather_object(items, own, group=group)
    return items

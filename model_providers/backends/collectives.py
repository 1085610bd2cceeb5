"""What tensor-parallel ranks exchange within a forward pass, and by which way."""

from __future__ import annotations

import logging
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from model_providers.backends.shared_memory import SharedMemoryCollectives, SharedMemoryError
from model_providers.config import ModelConfig
from model_providers.errors import ModelProviderError
from model_providers.kernels.library import kernels_for

logger = logging.getLogger(__name__)


class Collectives(Protocol):
    """Of one group. Every rank calls the same ones in the same order, with equal shapes and dtypes.

    They raise RuntimeError when a rank is gone or silent for too long.
    """

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, equal on all of them. May use part's memory for it."""
        ...

    def all_gather(self, shard: Tensor) -> Tensor:
        """(rows, n) -> (rows, n * ranks): shards side by side in the order of ranks."""
        ...

    def gather(self, shard: Tensor) -> Tensor | None:
        """`all_gather` for rank 0 alone; the others get None."""
        ...


class TorchCollectives:
    """By torch.distributed, on any device and over any number of machines.

    sums_in_order: add parts up in the order of ranks. An all-reduce adds more than two in an order of its own, which
    depends on where in the message a number lies.
    """

    def __init__(self, group: dist.ProcessGroup, *, sums_in_order: bool) -> None:
        self._group = group
        self._sums_in_order = sums_in_order

    def all_reduce(self, part: Tensor) -> Tensor:
        """See `Collectives.all_reduce`."""
        # The sum of two is the same in both orders.
        if self._group.size() <= 2 or not self._sums_in_order:
            dist.all_reduce(part, group=self._group)
            return part
        total, *others = self._shards(part)
        for other in others:
            total += other
        return total

    def all_gather(self, shard: Tensor) -> Tensor:
        """See `Collectives.all_gather`."""
        return torch.cat(self._shards(shard.contiguous()), dim=-1)

    def gather(self, shard: Tensor) -> Tensor | None:
        """See `Collectives.gather`."""
        shards = [torch.empty_like(shard) for _ in range(self._group.size())] if self._group.rank() == 0 else None
        dist.gather(shard.contiguous(), shards, group=self._group, group_dst=0)
        return None if shards is None else torch.cat(shards, dim=-1)

    def _shards(self, own: Tensor) -> list[Tensor]:
        shards = [torch.empty_like(own) for _ in range(self._group.size())]
        dist.all_gather(shards, own, group=self._group)
        return shards


def collectives_for(config: ModelConfig, group: dist.ProcessGroup) -> Collectives:
    """As config.all_reduce says: shared_memory, torch, or auto, the first of them where it is possible.

    All ranks call it together, for they must come to the same choice. Raises ModelProviderError, on every rank, where
    shared memory is asked for and impossible.
    """
    by_torch = TorchCollectives(group, sums_in_order=config.batch_invariant and config.device.type == "cpu")
    if (
        group.size() == 1
        or config.all_reduce == "torch"
        or (config.all_reduce == "auto" and config.device.type != "cpu")
    ):
        return by_torch
    kernels = kernels_for(config.kernels, config.dtype, config.device)
    try:
        return SharedMemoryCollectives.form(kernels, group, timeout=config.rank_timeout)
    except SharedMemoryError as error:
        if config.all_reduce == "shared_memory":
            raise ModelProviderError(f"--all-reduce shared_memory is not possible: {error}") from None
        level = logging.WARNING if error.is_unexpected else logging.INFO
        if group.rank() == 0:
            logger.log(level, "ranks exchange by torch.distributed, not through shared memory: %s", error)
        return by_torch

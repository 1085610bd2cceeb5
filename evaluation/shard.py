"""This process's part of the work, when several share a run: by a hash of the item's id, so that no two ask the same.

Rank and world size decide who asks, nothing else: no file, key or record holds them, and any later number of processes
goes on with the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from evaluation.errors import SetupError

# torchrun sets the first pair; `srun` the second for each task of a step. SLURM_NTASKS would not do: a batch script
# that calls no srun sees it too, and is one process.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


@dataclass(frozen=True)
class Shard:
    """Part `rank` of `world_size`, counted from 0."""

    rank: int = 0
    world_size: int = 1

    def holds(self, item_id: str) -> bool:
        """Whether this process asks the item."""
        digest = hashlib.sha256(item_id.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8]) % self.world_size == self.rank

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """By RANK and WORLD_SIZE, or SLURM's; the whole where neither is set. SetupError when they make no sense."""
        for rank_name, size_name in _VARIABLES:
            if rank_name in environment and size_name in environment:
                return cls._parse(rank_name, environment[rank_name], size_name, environment[size_name])
        return cls()

    @classmethod
    def _parse(cls, rank_name: str, rank: str, size_name: str, size: str) -> Self:
        try:
            shard = cls(int(rank), int(size))
        except ValueError:
            shard = cls(0, 0)
        if not 0 <= shard.rank < shard.world_size:
            raise SetupError(f"{rank_name}={rank} and {size_name}={size} in the environment name no part of a whole")
        return shard

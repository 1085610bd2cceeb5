"""All ranks of an offline evaluation: replicas of the model, barriers that name who is missing, gathering.

Ranks r * T to r * T + T - 1 are the tensor-parallel ranks of replica r. torch.distributed's default group is the
replica's own, as the engine wants it; what all ranks share is the launcher's store, torch.distributed's too, which can
say who has not come, unlike a collective.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from evaluation.errors import RanksError, SetupError

STORE_TIMEOUT = timedelta(seconds=300)
LEAVE_TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.02
_GIVEN_UP = "given_up"
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ranks:
    """This process among all. tensor_parallel_size: ranks of one replica. timeout: seconds to wait for another rank."""

    def __init__(self, store: Store, *, rank: int, world_size: int, tensor_parallel_size: int, timeout: float) -> None:
        if world_size % tensor_parallel_size:
            raise SetupError(
                f"{world_size} ranks are no whole number of replicas of --tensor-model-parallel-size "
                f"{tensor_parallel_size}; start a multiple of it with torchrun --nproc-per-node"
            )
        self._store = store
        self._timeout = timeout
        self._session = 0
        self.rank = rank
        self.world_size = world_size
        self.tensor_parallel_size = tensor_parallel_size

    @classmethod
    def of_environment(cls, tensor_parallel_size: int, timeout: float) -> Self:
        """As torchrun's environment says, alone without one. SetupError when it says only half."""
        given = [name for name in _ENVIRONMENT if os.environ.get(name)]
        if not {"RANK", "WORLD_SIZE"} & set(given):
            return cls(HashStore(), rank=0, world_size=1, tensor_parallel_size=tensor_parallel_size, timeout=timeout)
        if len(given) < len(_ENVIRONMENT):
            missing = ", ".join(name for name in _ENVIRONMENT if name not in given)
            raise SetupError(f"{', '.join(given)} are set but not {missing}; torchrun sets all of them")
        try:
            store, rank, world_size = next(rendezvous("env://", timeout=STORE_TIMEOUT))
        except (RuntimeError, ValueError) as error:
            raise SetupError(f"cannot meet the other ranks: {error}") from None
        return cls(
            PrefixStore("megaserve-evaluate", store),
            rank=rank,
            world_size=world_size,
            tensor_parallel_size=tensor_parallel_size,
            timeout=timeout,
        )

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_leader(self) -> bool:
        """Rank 0 of its replica: it schedules, asks and writes; the others follow it in the engine."""
        return self.rank % self.tensor_parallel_size == 0

    @property
    def replica(self) -> int:
        return self.rank // self.tensor_parallel_size

    @property
    def num_replicas(self) -> int:
        return self.world_size // self.tensor_parallel_size

    @property
    def leaders(self) -> range:
        return range(0, self.world_size, self.tensor_parallel_size)

    def join_replica(self) -> None:
        """Make the replica's ranks torch.distributed's default group."""
        if dist.is_initialized():
            raise SetupError("torch.distributed is initialised in this process already; leave that to the evaluation")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore(f"replica-{self.replica}", self._store),
            rank=self.rank % self.tensor_parallel_size,
            world_size=self.tensor_parallel_size,
        )

    def begin_session(self) -> None:
        """What is said from now on has nothing to do with what was said before. All ranks call it equally often."""
        self._session += 1

    def publish(self, name: str, text: str) -> None:
        """Tell all ranks something, once in a session."""
        self._call(lambda: self._store.set(self._key(name), text))

    def receive(self, name: str) -> str:
        """What a rank publishes; RanksError when it does not in time."""
        self._wait([(name, 0)], f"what it says ({name})")
        return self._get(self._key(name))

    def barrier(self, name: str, ranks: Sequence[int] | None = None) -> float:
        """Wait until `ranks` (None: all) are here -> seconds waited. RanksError names those that did not come."""
        started = time.monotonic()
        self.publish(f"barrier/{name}/{self.rank}", "here")
        awaited = range(self.world_size) if ranks is None else ranks
        self._wait([(f"barrier/{name}/{rank}", rank) for rank in awaited], f"the barrier {name!r}")
        return time.monotonic() - started

    def gather(self, name: str, text: str) -> list[str]:
        """Every leader's text by replica on rank 0; an empty list elsewhere. Only leaders call it."""
        self.publish(f"gather/{name}/{self.rank}", text)
        if not self.is_first:
            return []
        names = [f"gather/{name}/{rank}" for rank in self.leaders]
        self._wait(list(zip(names, self.leaders, strict=True)), f"the gathering of {name!r}")
        return [self._take(self._key(one)) for one in names]

    def give_up(self, reason: str) -> None:
        """Let nobody wait for this rank any more."""
        try:
            self._call(lambda: self._store.set(_GIVEN_UP, f"rank {self.rank} gave up: {reason}"))
        except RanksError:
            return  # the store has gone, and with it whoever could wait

    def leave(self) -> None:
        """The end: rank 0, which may hold the store, is the last to go; nobody waits long for a rank that died."""
        deadline = time.monotonic() + LEAVE_TIMEOUT_SECONDS
        try:
            self._call(lambda: self._store.set(f"left/{self.rank}", "left"))
            keys = [f"left/{rank}" for rank in range(self.world_size)] if self.is_first else []
            while keys and not self._has(keys) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        except RanksError:
            return  # the launcher has ended everything already

    def _wait(self, awaited: Sequence[tuple[str, int]], what: str) -> None:
        """Until all names are published. awaited: each with the rank that publishes it."""
        deadline = time.monotonic() + self._timeout
        while not self._has([self._key(name) for name, _ in awaited]):
            if self._has([_GIVEN_UP]):
                raise RanksError(self._get(_GIVEN_UP))
            if time.monotonic() > deadline:
                missing = [f"rank {rank}" for name, rank in awaited if not self._has([self._key(name)])]
                raise RanksError(
                    f"{', '.join(missing)} did not come within {self._timeout:g} seconds to {what}; what was answered "
                    "is in the run's log, and the same command resumes it"
                )
            time.sleep(_POLL_SECONDS)

    def _key(self, name: str) -> str:
        return f"{self._session}/{name}"

    def _has(self, keys: list[str]) -> bool:
        return bool(self._call(lambda: self._store.check(keys)))

    def _get(self, key: str) -> str:
        return bytes(self._call(lambda: self._store.get(key))).decode()

    def _take(self, key: str) -> str:
        text = self._get(key)
        self._call(lambda: self._store.delete_key(key))
        return text

    @staticmethod
    def _call[T](operation: Callable[[], T]) -> T:
        try:
            return operation()
        except (dist.DistError, RuntimeError) as error:
            raise RanksError(f"the launcher's store does not answer any more: {error}") from None

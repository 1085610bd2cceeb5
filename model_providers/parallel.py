"""Process groups of one tensor-parallel serving group."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch._C._distributed_c10d import HashStore


def join_world() -> None:
    """Join the default process group (environment of torchrun): gloo for CPU tensors, nccl for CUDA ones.

    Nothing is joined twice. Collectives of the default group wait as long as torch's default says: loading is slow.
    """
    if not dist.is_initialized():
        dist.init_process_group(_backend())


def join_world_by_file(rendezvous: Path, rank: int, world_size: int) -> None:
    """The same for processes of one machine that know their ranks and meet by a file, which none has used before."""
    dist.init_process_group(_backend(), init_method=rendezvous.as_uri(), rank=rank, world_size=world_size)


def join_world_of_one() -> None:
    """A default group with this process alone, for use without torchrun."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def _backend() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def initialize_tensor_parallel(size: int, *, timeout_seconds: float) -> None:
    """Form Megatron's groups over the world, which must be exactly one tensor-parallel group.

    timeout_seconds: how long a collective waits for another rank before it raises.
    """
    world_size = dist.get_world_size()
    if world_size != size:
        raise RuntimeError(f"{world_size} ranks were started for --tensor-model-parallel-size {size}")
    minutes = max(1, round(timeout_seconds / 60))
    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=size, distributed_timeout_minutes=minutes)


def broadcast_bytes(data: bytes | None) -> bytes:
    """Rank 0's bytes on every rank; the others pass None."""
    length = torch.tensor([len(data or b"")], dtype=torch.int64)
    dist.broadcast(length, src=0)
    buffer = torch.frombuffer(bytearray(data or bytes(int(length))), dtype=torch.uint8)
    dist.broadcast(buffer, src=0)
    return buffer.numpy().tobytes()


def shutdown_parallel() -> None:
    """Leave all groups; safe to call when none was joined."""
    if parallel_state.is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def gather_pids() -> list[int]:
    """Process ids by rank, on every rank."""
    pids = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    pids[dist.get_rank()] = os.getpid()
    dist.all_reduce(pids)
    return [int(pid) for pid in pids]

"""Megatron in one CPU process: a process group of one, and the CUDA calls that saving makes on any device."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore


@contextmanager
def process_group_of_one() -> Iterator[None]:
    """Gloo and Megatron's parallel state with every size 1, taken down afterwards.

    A process that already runs alone under Megatron's parallel state is used as it is. Raises RuntimeError in a process
    that is one of several ranks.
    """
    from megatron.core import parallel_state

    if dist.is_initialized():
        if dist.get_world_size() != 1:
            raise RuntimeError("checkpoints are written by one process; this one belongs to a group of ranks")
        if parallel_state.model_parallel_is_initialized():
            yield
            return
        raise RuntimeError("torch.distributed is initialised here, but Megatron's parallel state is not")
    # A store in memory needs neither a port, which could clash with a server's, nor a file.
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


@contextmanager
def saving_on_cpu() -> Iterator[None]:
    """Let `megatron.core.dist_checkpointing.save` (0.19.2) run on CPU tensors, with or without a GPU present.

    Three names are replaced for the duration:
    torch.cuda.current_device  strategies/state_dict_saver.py makes its status flag on that device
    torch.cuda.synchronize     strategies/filesystem_async.py waits for copies from the GPU, of which there are none
    _results_queue             strategies/filesystem_async.py would spawn a manager process for a queue that a
                               synchronous save fills and empties in this process
    """
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    replacements: list[tuple[Any, str, Any]] = [
        (torch.cuda, "current_device", lambda: torch.device("cpu")),
        (torch.cuda, "synchronize", lambda *_: None),
        (filesystem_async, "_results_queue", queue.Queue()),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)

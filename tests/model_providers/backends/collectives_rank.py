"""One of three ranks that try every way to exchange: `collectives_rank.py DIRECTORY RANK`. Rank 2 kills itself.

DIRECTORY gets `rank<N>.json` with what ranks 0 and 1 saw.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from model_providers.backends.collectives import Collectives, TorchCollectives, collectives_for
from model_providers.backends.shared_memory import SharedMemoryCollectives
from model_providers.config import ModelConfig
from model_providers.errors import ModelProviderError

SIZE = 3
SHAPES = ((1, 1), (3, 17), (300, 577))


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.levelname, record.getMessage()))


def chosen(way: str, kernels: str = "auto", dtype: torch.dtype = torch.float32) -> Collectives:
    config = ModelConfig(
        values={}, checkpoint=Path(), checkpoint_format="torch_dist", dtype=dtype, device=torch.device("cpu"),
        tensor_model_parallel_size=SIZE, vocab_size=1, max_model_len=1, packed_linears=False, kernels=kernels,
        all_reduce=way,
    )  # fmt: skip
    return collectives_for(config, dist.group.WORLD)


def refusal(way: str, **changes: Any) -> str:
    try:
        chosen(way, **changes)
    except ModelProviderError as error:
        return str(error)
    return ""


def part_of(rank: int, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(rank)) * 100).to(dtype)


def wrong_results(collectives: Collectives, *, rounds_once: bool) -> list[str]:
    """What differs from plain torch. rounds_once: sums are not rounded after each addition."""
    wrong = []
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            parts = [part_of(rank, shape, dtype) for rank in range(SIZE)]
            total = parts[0].float() if rounds_once else parts[0]
            for part in parts[1:]:
                total = total + part
            own = parts[dist.get_rank()]
            joined = torch.cat(parts, dim=-1)
            gathered = collectives.gather(own)
            is_right = {
                "all_gather": torch.equal(collectives.all_gather(own), joined),
                "gather": gathered is None if dist.get_rank() else torch.equal(gathered, joined),  # type: ignore[arg-type]
                # Of a transposed copy: not dense.
                "all_reduce": torch.equal(collectives.all_reduce(own.t().contiguous().t()), total.to(dtype)),
            }
            wrong += [f"{name} {shape} {dtype}" for name, right in is_right.items() if not right]
    return wrong


def without_memory(records: Records) -> dict[str, Any]:
    """A limit on the size of files is one on anonymous files, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        records.seen.clear()
        fallback = type(chosen("auto")).__name__
        return {"fallback": fallback, "log": list(records.seen), "refusal": refusal("shared_memory")}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def end_of_a_rank(collectives: Collectives) -> str:
    if dist.get_rank() == 2:
        time.sleep(0.2)  # the others wait by then
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        collectives.all_reduce(torch.ones(10, 10))
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    directory, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=SIZE)
    records = Records()
    logging.getLogger("model_providers").addHandler(records)
    logging.getLogger("model_providers").setLevel(logging.INFO)
    shared, by_torch = chosen("auto"), chosen("torch")
    assert isinstance(shared, SharedMemoryCollectives)
    assert isinstance(by_torch, TorchCollectives)
    seen = {
        "wrong through shared memory": wrong_results(shared, rounds_once=True),
        "wrong by torch": wrong_results(by_torch, rounds_once=False),
        "maps": [line for line in Path("/proc/self/maps").read_text().splitlines() if "megaserve" in line],
        "without kernels": [type(chosen("auto", kernels="off")).__name__, refusal("shared_memory", kernels="off")],
        "half precision": refusal("shared_memory", dtype=torch.float16),
        "without memory": without_memory(records),
        "end of a rank": end_of_a_rank(shared),
    }
    (directory / f"rank{rank}.json").write_text(json.dumps(seen))
    os._exit(0)  # the group has lost a rank, so it cannot be left in order


if __name__ == "__main__":
    main()

"""One rank that loads and runs LLaVA checkpoints: `torchrun ... llava_rank.py JOBS RESULT`.

JOBS, by torch.save: [{"checkpoint": directory, "images": [...], "imgs_sizes": [...] or None, "token_ids": (T,)}].
RESULT, by torch.save from rank 0: for each job its image embeddings and the logits of the prompt, text alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from model_providers import get_model
from model_providers.backends.kv_cache import KVCache
from model_providers.backends.step_metadata import StepMetadata
from model_providers.backends.torch_attention import TorchAttention
from model_providers.checkpoint.peek import peek
from model_providers.config import ModelConfig
from model_providers.parallel import initialize_tensor_parallel, join_world, shutdown_parallel


def load(checkpoint: Path) -> Any:
    found = peek(checkpoint)
    config = ModelConfig(
        values=found.args,
        checkpoint=found.path,
        checkpoint_format=found.format,
        dtype=torch.float32,
        device=torch.device("cpu"),
        tensor_model_parallel_size=dist.get_world_size(),
        vocab_size=found.args["vocab_size"],
        max_model_len=found.args["max_position_embeddings"],
        packed_linears=True,
    )
    return get_model(True, config)


def logits(model: Any, token_ids: Tensor) -> Tensor:
    count = len(token_ids)
    step = StepMetadata.of_prompt(count, block_size=16, device=torch.device("cpu"))
    cache = KVCache(
        num_layers=model.config.num_layers,
        num_blocks=-(-count // 16),
        block_size=16,
        num_kv_heads=model.num_kv_heads_per_rank,
        head_dim=model.config.kv_channels,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    shard = model.compute_logits(model.forward_packed(token_ids, step, cache, TorchAttention())).contiguous()
    shards = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(shards, shard)
    return torch.cat(shards, dim=-1)


def main() -> None:
    jobs, result = torch.load(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    join_world()
    initialize_tensor_parallel(dist.get_world_size(), timeout_seconds=60)
    outcomes = []
    for job in jobs:
        model = load(Path(job["checkpoint"]))
        images = model.encode_images(job["images"], job["imgs_sizes"])
        outcomes.append({"images": images, "logits": logits(model, job["token_ids"])})
    if dist.get_rank() == 0:
        torch.save(outcomes, result)
    shutdown_parallel()


if __name__ == "__main__":
    main()

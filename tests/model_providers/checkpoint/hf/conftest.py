"""Tiny random Hugging Face models of every family, and the logits that the serving model computes for a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def write_hf_model(tmp_path: Path) -> Callable[..., Any]:
    """`write_hf_model(config)` saves a random model at tmp_path/"hf" and returns it, in evaluation mode, float32.

    Every parameter is random: the ones and zeros that norms and biases start from would hide a tensor put in the wrong
    place.
    """

    def write(config: Any, **save_options: Any) -> Any:
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                is_norm = "norm" in name or ".ln_" in name
                noise = torch.randn_like(parameter) * 0.2
                parameter.copy_(1 + noise if is_norm and name.endswith("weight") else noise)
        model.save_pretrained(tmp_path / "hf", **save_options)
        return model

    return write


@pytest.fixture
def serving_logits() -> Callable[[Path, list[int]], Tensor]:
    """`serving_logits(checkpoint, token_ids)`: one prompt through `get_model`, float32 (tokens, padded vocabulary)."""

    def compute(checkpoint: Path, token_ids: list[int]) -> Tensor:
        from model_providers import get_model
        from model_providers.backends.kv_cache import KVCache
        from model_providers.backends.step_metadata import StepMetadata
        from model_providers.backends.torch_attention import TorchAttention
        from model_providers.checkpoint.peek import peek
        from model_providers.checkpoint.single_process import process_group_of_one
        from model_providers.config import ModelConfig

        found = peek(checkpoint)
        config = ModelConfig(
            values=found.args,
            checkpoint=found.path,
            checkpoint_format=found.format,
            dtype=torch.float32,
            device=torch.device("cpu"),
            tensor_model_parallel_size=1,
            vocab_size=found.args["vocab_size"],
            max_model_len=found.args["max_position_embeddings"],
            packed_linears=False,
        )
        count = len(token_ids)
        step = StepMetadata.of_prompt(count, block_size=16, device=torch.device("cpu"))
        with process_group_of_one():
            model = get_model(False, config)
            cache = KVCache(
                num_layers=model.config.num_layers,
                num_blocks=-(-count // 16),
                block_size=16,
                num_kv_heads=model.config.num_query_groups,
                head_dim=model.config.kv_channels,
                dtype=torch.float32,
                device=torch.device("cpu"),
            )
            hidden = model.forward_packed(torch.tensor(token_ids), step, cache, TorchAttention())
            return model.compute_logits(hidden)

    return compute

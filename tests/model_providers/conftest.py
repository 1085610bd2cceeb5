"""Tiny LLaVA models: their training arguments, random weights, and the served model that holds them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

_LANGUAGE = {
    "num-layers": 2, "hidden-size": 64, "ffn-hidden-size": 96, "num-attention-heads": 4, "num-query-groups": 2,
    "seq-length": 256, "max-position-embeddings": 256, "position-embedding-type": "rope", "normalization": "RMSNorm",
    "padded-vocab-size": 52, "vocab-size": 50, "language-model-type": "tiny",
}  # fmt: skip
_VISION = {
    "img-h": 56, "img-w": 56, "patch-dim": 14, "vision-num-layers": 2, "vision-hidden-size": 32,
    "vision-num-attention-heads": 4, "vision-ffn-hidden-size": 48, "vision-projection-ffn-hidden-size": 40,
}  # fmt: skip
_SWITCHES = ["group-query-attention", "swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights"]


@pytest.fixture
def one_process() -> Iterator[None]:
    """Megatron's parallel state with every size 1, and one thread: another number of threads moves the last bits."""
    from model_providers.checkpoint.single_process import process_group_of_one

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with process_group_of_one():
            yield
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def llava_args() -> Callable[..., Namespace]:
    """`llava_args("clip", "--pixel-shuffle", ...)`: what training a tiny LLaVA with that encoder would store."""
    from model_providers.checkpoint.training_args import training_args

    def make(encoder: str, *flags: str) -> Namespace:
        options = {**_LANGUAGE, **_VISION, "vision-model-type": encoder}
        described = [*(f"--{name}={value}" for name, value in options.items()), *(f"--{name}" for name in _SWITCHES)]
        return training_args([*described, *flags], multimodal=True)

    return make


@pytest.fixture
def model_config() -> Callable[..., Any]:
    """`model_config(args)`: float32 on the CPU, one rank; more by keyword."""
    from model_providers.config import ModelConfig

    def make(args: Namespace, **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "values": vars(args), "checkpoint": Path(), "checkpoint_format": "torch_dist", "dtype": torch.float32,
            "device": torch.device("cpu"), "tensor_model_parallel_size": 1, "vocab_size": args.vocab_size,
            "max_model_len": args.max_position_embeddings, "packed_linears": False,
        }  # fmt: skip
        return ModelConfig(**{**settings, **changes})

    return make


@pytest.fixture
def random_weights() -> Callable[[torch.nn.Module], dict[str, Tensor]]:
    """Values for every parameter; norms around 1, so that none is in a place where it would not show."""

    def make(model: torch.nn.Module) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(3)
        weights = {}
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.15
            is_scale = name.endswith(("norm.weight", "norm_weight", "ln_pre.weight", "ln_post.weight"))
            weights[name] = 1 + noise if is_scale else noise
        return weights

    return make


@pytest.fixture
def served_llava(
    one_process: None,
    model_config: Callable[..., Any],
    random_weights: Callable[[torch.nn.Module], dict[str, Tensor]],
) -> Callable[..., Any]:
    """`served_llava(args)`: the serving model with random weights, ready; `model_config`'s changes by keyword."""
    from model_providers.llava import construct

    def make(args: Namespace, **changes: Any) -> Any:
        config = model_config(args, **changes)
        model = construct(config)
        weights = {name: torch.nn.Parameter(value.to(config.dtype)) for name, value in random_weights(model).items()}
        model.load_state_dict(weights, strict=False, assign=True)
        model.eval().requires_grad_(False)
        model.prepare_for_serving(config)
        return model

    return make


@pytest.fixture
def packed_hidden() -> Callable[..., Tensor]:
    """`packed_hidden(model, token_ids, image_rows, embeddings, rows=...)`: one prompt, whole -> (tokens, hidden)."""
    from model_providers.backends.kv_cache import KVCache
    from model_providers.backends.step_metadata import ImageRows, StepMetadata
    from model_providers.backends.torch_attention import TorchAttention

    def compute(
        model: Any,
        token_ids: Tensor,
        image_rows: Tensor | None = None,
        embeddings: Any = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        count = len(token_ids)
        images = None if image_rows is None else ImageRows(image_rows, embeddings)
        step = StepMetadata.of_prompt(count, block_size=16, device=torch.device("cpu")).with_images(images)
        cache = KVCache(
            num_layers=model.config.num_layers,
            num_blocks=-(-count // 16),
            block_size=16,
            num_kv_heads=model.num_kv_heads_per_rank,
            head_dim=model.config.kv_channels,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        hidden: Tensor = model.forward_packed(token_ids, step, cache, TorchAttention(), rows)
        return hidden

    return compute


@pytest.fixture
def packed_logits(packed_hidden: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`packed_logits(model, token_ids, image_rows, embeddings)`: one prompt, whole -> (tokens, vocabulary)."""

    def compute(model: Any, *prompt: Any) -> Tensor:
        logits: Tensor = model.compute_logits(packed_hidden(model, *prompt))
        return logits

    return compute

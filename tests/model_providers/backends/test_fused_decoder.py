"""Layers run by one call give the bits that they give one by one, in every family and for every kind of step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model_providers.backends.kernel_attention import KernelAttention
from model_providers.backends.kv_cache import CacheLayout, KVCache
from model_providers.backends.step_metadata import StepMetadata
from model_providers.config import ModelConfig
from model_providers.kernels.library import load_kernels

CPU = torch.device("cpu")
BLOCK = 4
GQA = ("--group-query-attention", "--num-query-groups", "2")
LLAMA = (*GQA, "--swiglu", "--normalization", "RMSNorm", "--disable-bias-linear", "--position-embedding-type", "rope")
GPT2 = ("--position-embedding-type", "learned_absolute", "--normalization", "LayerNorm")
FAMILIES = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "exact gelu": (*GPT2, "--no-bias-gelu-fusion"),
    "quick geglu": (*GQA, "--quick-geglu", "--normalization", "RMSNorm", "--position-embedding-type", "rope"),
}
NOT_FUSED = {"qk norm": (*LLAMA, "--qk-layernorm"), "squared relu": (*GPT2, "--squared-relu")}


@pytest.fixture
def served_gpt(
    one_process: None,
    model_config: Callable[..., ModelConfig],
    random_weights: Callable[[torch.nn.Module], dict[str, Tensor]],
) -> Callable[..., Any]:
    from model_providers.checkpoint.training_args import training_args
    from model_providers.gpt import construct

    def make(*flags: str, dtype: torch.dtype = torch.float32, quantize: str = "none") -> Any:
        sizes = ("--num-layers=3", "--hidden-size=48", "--ffn-hidden-size=80", "--num-attention-heads=4")
        lengths = ("--seq-length=64", "--max-position-embeddings=64", "--padded-vocab-size=40", "--vocab-size=40")
        config = model_config(
            training_args([*sizes, *lengths, *flags]), dtype=dtype, packed_linears=True, quantize=quantize
        )
        model = construct(config)
        weights = {name: torch.nn.Parameter(value.to(dtype)) for name, value in random_weights(model).items()}
        model.load_state_dict(weights, strict=False, assign=True)
        model.eval().requires_grad_(False)
        model.prepare_for_serving(config)
        return model

    return make


def hidden_states(model: Any, dtype: torch.dtype, every: int = 1) -> list[Tensor]:
    """Of two prompts, of one more beside their next tokens, and of many tokens after few; of each `every`-th row."""
    kernels = load_kernels("auto")
    assert kernels is not None
    cache = KVCache(
        num_layers=3, num_blocks=40, block_size=BLOCK, num_kv_heads=model.num_kv_heads_per_rank,
        head_dim=model.config.kv_channels, dtype=dtype, device=CPU, layout=CacheLayout.TRANSPOSED_KEYS,
    )  # fmt: skip
    tables = np.arange(30, dtype=np.int32).reshape(3, 10)
    tokens = torch.Generator().manual_seed(11)
    results = []
    for num_new, num_computed in (([5, 9], [0, 0]), ([1, 1, 7], [5, 9, 0]), ([1], [6]), ([1, 30], [7, 10])):
        step = StepMetadata.build(
            np.array(num_new), np.array(num_computed), tables[: len(num_new)], block_size=BLOCK, device=CPU
        )
        ids = torch.randint(0, 40, (sum(num_new),), generator=tokens)
        rows = torch.arange(0, len(ids), every)
        results.append(model.forward_packed(ids, step, cache, KernelAttention(kernels), rows).clone())
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_are_those_of_layer_by_layer(
    served_gpt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, family: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)  # elsewhere oneDNN multiplies
    model = served_gpt(*FAMILIES[family], dtype=dtype)
    assert model._fused_decoder is not None
    fused = hidden_states(model, dtype)
    for mine, expected in zip(hidden_states(model, dtype, every=3), fused, strict=True):
        assert torch.equal(mine, expected[::3])
    model._fused_decoder = None
    for mine, expected in zip(fused, hidden_states(model, dtype), strict=True):
        assert torch.isfinite(expected).all()
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_weights_give_the_same_bits_too(served_gpt: Callable[..., Any], dtype: torch.dtype) -> None:
    model = served_gpt(*FAMILIES["gpt2"], dtype=dtype, quantize="int8")
    assert model._fused_decoder is not None
    fused = hidden_states(model, dtype)
    model._fused_decoder = None
    assert all(torch.equal(*both) for both in zip(fused, hidden_states(model, dtype), strict=True))
    plain = hidden_states(served_gpt(*FAMILIES["gpt2"], dtype=dtype), dtype)
    assert not any(torch.equal(*both) for both in zip(fused, plain, strict=True))


@pytest.mark.parametrize("family", NOT_FUSED)
def test_what_the_kernels_do_not_have_is_computed_layer_by_layer(
    served_gpt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    model = served_gpt(*NOT_FUSED[family])
    assert model._fused_decoder is None
    assert all(torch.isfinite(hidden).all() for hidden in hidden_states(model, torch.float32))

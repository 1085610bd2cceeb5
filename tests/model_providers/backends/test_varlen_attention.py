"""FlashAttention through torch's own `varlen_attn`, as far as that goes without a GPU, and what it is chosen for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from model_providers.backends.attention import attention_for, serves_by_varlen
from model_providers.backends.kv_cache import KVCache
from model_providers.backends.step_metadata import StepMetadata
from model_providers.backends.torch_attention import TorchAttention
from model_providers.backends.varlen_attention import torch_varlen_attention
from model_providers.backends.varlen_limits import BLOCK_MULTIPLE
from model_providers.config import ModelConfig

CONFIG = ModelConfig(
    values={"kv_channels": 64},
    checkpoint=Path(),
    checkpoint_format="torch_dist",
    dtype=torch.bfloat16,
    device=torch.device("cpu"),
    tensor_model_parallel_size=1,
    vocab_size=100,
    max_model_len=1000,
    packed_linears=False,
)


def test_torch_s_function_takes_what_it_is_given() -> None:
    """Tensors without numbers go through the operator that is registered for them; names and shapes must be right."""
    backend = torch_varlen_attention()
    with FakeTensorMode(allow_non_fake_inputs=True):
        cpu = torch.device("cpu")
        cache = KVCache(
            num_layers=1,
            num_blocks=4,
            block_size=BLOCK_MULTIPLE,
            num_kv_heads=2,
            head_dim=64,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            layout=backend.cache_layout,
        )
        tables = np.array([[0, 1], [2, 0]], dtype=np.int32)
        step = StepMetadata.build(np.array([1, 5]), np.array([300, 7]), tables, block_size=BLOCK_MULTIPLE, device=cpu)
        plan = backend.plan(step, cache, rotary=None, queries_per_group=3, scale=0.125)
        qkv = torch.empty(6, 2, 5, 64, dtype=torch.bfloat16)
        out = backend.attend(qkv, layer=0, cache=cache, plan=plan)
    assert (out.shape, out.dtype) == ((6, 384), torch.bfloat16)


@pytest.mark.parametrize(
    ("changes", "capability", "serves"),
    [
        ({}, (8, 0), True),
        ({"dtype": torch.float16}, (9, 0), True),
        ({"dtype": torch.float32}, (9, 0), False),
        ({}, (7, 5), False),
        ({}, None, False),
        ({"kernels": "off"}, (9, 0), False),
        ({"values": {"kv_channels": 256}}, (9, 0), True),
        ({"values": {"kv_channels": 264}}, (9, 0), False),
        ({"values": {"kv_channels": 100}}, (9, 0), False),
    ],
)
def test_what_it_is_chosen_for(changes: dict[str, Any], capability: tuple[int, int] | None, serves: bool) -> None:
    assert serves_by_varlen(replace(CONFIG, **changes), capability) is serves


def test_a_cpu_never_gets_it() -> None:
    assert isinstance(attention_for(replace(CONFIG, dtype=torch.float16)), TorchAttention)

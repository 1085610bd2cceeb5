"""All attention backends on the same random steps: gathered by torch operators, paged by the kernels, and varlen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_providers.backends.attention import AttentionBackend
from model_providers.backends.kernel_attention import KernelAttention
from model_providers.backends.kv_cache import KVCache
from model_providers.backends.rotary import RotaryTable
from model_providers.backends.step_metadata import StepMetadata
from model_providers.backends.torch_attention import TorchAttention
from model_providers.backends.varlen_attention import VarlenAttention, VarlenFunction
from model_providers.kernels.library import load_kernels

KV_HEADS, GROUP, HEAD_DIM, BLOCK = 2, 3, 16, 4
CPU = torch.device("cpu")


class Frequencies:
    """Stands where Megatron's RotaryEmbedding does."""

    def __init__(self, interleaved: bool) -> None:
        self.rotary_interleaved = interleaved

    def get_freqs_non_repeated(self, max_positions: int) -> Tensor:
        return torch.outer(torch.arange(max_positions).float(), 100.0 ** (-torch.arange(4) / 4))


def run(backend: AttentionBackend, steps: list[StepMetadata], qkv: list[Tensor], rotary: RotaryTable) -> list[Tensor]:
    cache = KVCache(
        num_layers=1,
        num_blocks=200,
        block_size=BLOCK,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=qkv[0].dtype,
        device=CPU,
        layout=backend.cache_layout,
    )
    outputs = []
    for step, new in zip(steps, qkv, strict=True):
        plan = backend.plan(step, cache, rotary=rotary, queries_per_group=GROUP, scale=0.25)
        outputs.append(backend.attend(new.clone(), layer=0, cache=cache, plan=plan))
    return outputs


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.tuples(st.integers(2, 40), st.sampled_from([1, 1, 2, 9])), min_size=1, max_size=5),
    interleaved=st.booleans(),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_backends_agree(
    reference_varlen: VarlenFunction,
    lengths: list[tuple[int, int]],
    interleaved: bool,
    seed: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """lengths: (tokens before the step, tokens in it) per sequence."""
    lengths = sorted(lengths, key=lambda pair: (pair[1] > 1, -sum(pair)))
    computed, new = (np.array(column) for column in zip(*lengths, strict=True))
    generator = np.random.default_rng(seed)
    width = -(-int((computed + new).max()) // BLOCK)
    tables = generator.permutation(200)[: len(lengths) * width].reshape(-1, width).astype(np.int32)
    zeros = np.zeros_like(computed)
    steps = [
        StepMetadata.build(computed, zeros, tables, block_size=BLOCK, device=CPU),
        StepMetadata.build(new, computed, tables, block_size=BLOCK, device=CPU),
    ]
    torch.manual_seed(seed)
    qkv = [torch.randn(len(step.positions), KV_HEADS, GROUP + 2, HEAD_DIM).to(dtype) for step in steps]
    rotary = RotaryTable(Frequencies(interleaved), 64)
    kernels = load_kernels("auto")
    assert kernels is not None
    slow = run(TorchAttention(), steps, qkv, rotary)
    for backend in (KernelAttention(kernels), VarlenAttention(reference_varlen)):
        for expected, actual in zip(slow, run(backend, steps, qkv, rotary), strict=True):
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_the_first_step_of_a_sequence_needs_no_blocks_read_back() -> None:
    cache = KVCache(
        num_layers=1, num_blocks=8, block_size=BLOCK, num_kv_heads=1, head_dim=8, dtype=torch.float32, device=CPU
    )
    step = StepMetadata.build(
        np.array([1, 1, 1, 6, 3]),
        np.array([39, 9, 8, 0, 5]),
        np.zeros((5, 10), dtype=np.int32),
        block_size=BLOCK,
        device=CPU,
    )
    plan = TorchAttention().plan(step, cache, rotary=None, queries_per_group=1, scale=1.0)
    assert [group.rows for group in plan.decode] == [slice(0, 1), slice(1, 3)]
    assert [chunk.pieces is None for chunk in plan.prefill] == [True, False]

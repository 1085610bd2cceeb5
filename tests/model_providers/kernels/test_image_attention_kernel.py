"""Attention inside images against its definition, and the promise that an image's bits are its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model_providers.kernels.library import Kernels

# Around whole panels (16), items of queries (64) and splits of keys (128).
LENGTHS = st.lists(st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257]), min_size=1, max_size=4)
HEAD_DIMS = st.sampled_from([1, 4, 16, 24, 33, 64, 72])
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def starts_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def definition(qkv: Tensor, scale: float) -> Tensor:
    """One image in double precision: (tokens, heads, 3, head_dim) -> (tokens, heads * head_dim)."""
    query, key, value = (part.double().transpose(0, 1) for part in qkv.unbind(2))
    return scaled_dot_product_attention(query, key, value, scale=scale).transpose(0, 1).flatten(1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=LENGTHS, heads=st.integers(1, 3), head_dim=HEAD_DIMS, dtype=st.sampled_from(list(TOLERANCE)))
def test_every_image_is_what_it_is_alone(
    kernels: Kernels, lengths: list[int], heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    qkv = torch.randn(sum(lengths), heads, 3, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype)
    scale = head_dim**-0.5
    together = torch.split(kernels.attend_images(qkv, starts_of(lengths), scale), lengths)
    for own, actual in zip(torch.split(qkv, lengths), together, strict=True):
        torch.testing.assert_close(actual.double(), definition(own, scale), rtol=0, atol=TOLERANCE[dtype] * 4)
        assert torch.equal(kernels.attend_images(own.clone(), starts_of([len(own)]), scale), actual)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_threads_change_nothing(kernels: Kernels, dtype: torch.dtype) -> None:
    lengths = [300, 64, 5]
    qkv = torch.randn(sum(lengths), 2, 3, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = torch.get_num_threads()
    outcomes = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outcomes.append(kernels.attend_images(qkv, starts_of(lengths), 0.2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(outcome, outcomes[0]) for outcome in outcomes)


def test_an_image_that_is_not_finite_fails_alone(kernels: Kernels) -> None:
    lengths = [20, 40, 20]
    qkv = torch.randn(sum(lengths), 2, 3, 16, generator=torch.Generator().manual_seed(1))
    expected = kernels.attend_images(qkv, starts_of(lengths), 0.25)
    qkv[25, 1, 1] = float("nan")
    actual = kernels.attend_images(qkv, starts_of(lengths), 0.25)
    for begin, end in ((0, 20), (60, 80)):
        assert torch.equal(actual[begin:end], expected[begin:end])
    assert actual[20:60, 16:].isnan().all()

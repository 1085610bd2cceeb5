"""Norms and activations against torch's own, over odd widths and both dtypes; a row's bits do not depend on others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, rms_norm, silu

from model_providers.kernels.library import Kernels

several = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rows = st.sampled_from([1, 2, 3, 40])
widths = st.sampled_from([1, 3, 8, 15, 16, 31, 64, 576, 577, 1536])
dtypes = st.sampled_from([torch.float32, torch.bfloat16])
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@several
@given(rows=rows, width=widths, dtype=dtypes, biased=st.booleans())
def test_norm(kernels: Kernels, rows: int, width: int, dtype: torch.dtype, biased: bool) -> None:
    residual, update = (randn(rows, width, dtype=dtype, seed=seed) * 3 + 1 for seed in (1, 2))
    weight = randn(width, dtype=dtype, seed=3)
    bias = randn(width, dtype=dtype, seed=4) if biased else None
    total, normed = kernels.add_norm(residual, update, weight, bias, 1e-5)
    assert torch.equal(total, residual + update)
    exact = (total.double(), (width,), weight.double())
    expected = layer_norm(*exact, bias.double(), 1e-5) if bias is not None else rms_norm(*exact, 1e-5)
    # A row of one number has no variance: LayerNorm of it is 0 / 0 but for eps, and rounding shows.
    tolerance = TOLERANCE[dtype] * 4
    torch.testing.assert_close(normed.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(kernels.norm(total, weight, bias, 1e-5), normed)
    assert torch.equal(kernels.norm(total[-1:].clone(), weight, bias, 1e-5), normed[-1:])


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@pytest.mark.parametrize(("name", "function"), [("silu_gated", silu), ("quick_gelu_gated", quick_gelu)])
@several
@given(rows=rows, width=widths, dtype=dtypes)
def test_gated(
    kernels: Kernels, name: str, function: Callable[[Tensor], Tensor], rows: int, width: int, dtype: torch.dtype
) -> None:
    x = randn(rows, 2 * width, dtype=dtype) * 6
    out = getattr(kernels, name)(x)
    gate, up = x.double().chunk(2, dim=-1)
    torch.testing.assert_close(out.double(), function(gate) * up, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(getattr(kernels, name)(x[-1:].clone()), out[-1:])


@pytest.mark.parametrize("tanh", [True, False])
@several
@given(rows=rows, width=widths, dtype=dtypes)
def test_gelu(kernels: Kernels, tanh: bool, rows: int, width: int, dtype: torch.dtype) -> None:
    x = randn(rows, width, dtype=dtype) * 6
    out = kernels.gelu(x, tanh=tanh)
    expected = gelu(x.double(), approximate="tanh" if tanh else "none")
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(kernels.gelu(x[-1:].clone(), tanh=tanh), out[-1:])


@pytest.mark.parametrize(("name", "function"), [("silu", silu), ("quick_gelu", quick_gelu)])
@several
@given(rows=rows, width=widths, dtype=dtypes)
def test_plain(
    kernels: Kernels, name: str, function: Callable[[Tensor], Tensor], rows: int, width: int, dtype: torch.dtype
) -> None:
    x = randn(rows, width, dtype=dtype) * 6
    out = getattr(kernels, name)(x)
    torch.testing.assert_close(out.double(), function(x.double()), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(getattr(kernels, name)(x[-1:].clone()), out[-1:])


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -200.0, 200.0, 0.0])
def test_extremes_of_silu(kernels: Kernels, value: float) -> None:
    x = torch.tensor([[value] * 20 + [1.0] * 20])
    torch.testing.assert_close(kernels.silu_gated(x), silu(x[:, :20]), equal_nan=True, rtol=1e-6, atol=1e-30)

"""Quantized weights: the product by what they were rounded to, and parts that are quantized alone as in the whole."""

from __future__ import annotations

import pytest
import torch

from model_providers.backends.packed_weight import pack_weight
from model_providers.backends.quantized_weight import QuantizedWeight
from model_providers.kernels.library import Kernels, load_kernels


@pytest.fixture
def kernels() -> Kernels:
    kernels = load_kernels("auto")
    assert kernels is not None
    return kernels


def random_weight(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(50, 65, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_product_is_by_the_unpacked_weight(kernels: Kernels, dtype: torch.dtype) -> None:
    weight = random_weight(dtype)
    packed = pack_weight(weight, kernels, batch_invariant=True, quantize="int8")
    assert isinstance(packed, QuantizedWeight)
    assert packed.nbytes == 64 * 65 + 64 * 4  # outputs padded to whole panels
    unpacked = packed.unpacked()
    assert unpacked.dtype == dtype
    half_a_step = weight.double().abs().amax(1, keepdim=True) / 127 / 2
    rounding = 1e-6 if dtype == torch.float32 else 2**-8  # of the unpacked numbers themselves
    assert ((unpacked.double() - weight.double()).abs() <= half_a_step + weight.double().abs() * rounding).all()
    assert not torch.equal(unpacked, weight)
    x, bias = torch.randn(7, 65).to(dtype), torch.randn(50).to(dtype)
    relative = 1e-5 if dtype == torch.float32 else 2e-2
    expected = x.double() @ unpacked.double().T + bias.double()
    torch.testing.assert_close(packed.multiply(x, bias).double(), expected, rtol=relative, atol=10 * relative)
    # Columns of a wider tensor are taken, too.
    assert torch.equal(packed.multiply(torch.cat([x, x], dim=1)[:, :65], bias), packed.multiply(x, bias))


def test_a_column_parallel_shard_has_the_numbers_of_the_whole(kernels: Kernels) -> None:
    weight = random_weight()
    whole = QuantizedWeight(weight, kernels).unpacked()
    shards = [QuantizedWeight(shard, kernels).unpacked() for shard in weight.chunk(2)]
    assert torch.equal(torch.cat(shards), whole)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_refused(kernels: Kernels, bad: float) -> None:
    weight = random_weight()
    weight[49, 64] = bad
    with pytest.raises(ValueError, match="not finite"):
        QuantizedWeight(weight, kernels)

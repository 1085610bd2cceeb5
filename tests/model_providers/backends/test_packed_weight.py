"""Packed weights: the same product, the weight given back, and rows whose bits do not depend on how many there are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from model_providers.backends.packed_weight import BlockedWeight, PackedWeight, PanelWeight, pack_weight
from model_providers.kernels.library import load_kernels


def pack(kind: str, weight: Tensor) -> PackedWeight:
    kernels = load_kernels("auto")
    assert kernels is not None
    return PanelWeight(weight, kernels) if kind == "panels" else BlockedWeight(weight, batch_invariant=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["panels", "blocked"])
def test_product_and_weight(kind: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((40, 65), (50, 65), (50,)))
    packed = pack(kind, weight)
    assert torch.equal(packed.unpacked(), weight)
    expected = x.double() @ weight.double().T + bias.double()
    out = packed.multiply(x, bias)
    assert out.dtype == dtype
    relative = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out.double(), expected, rtol=relative, atol=10 * relative)
    for rows in (1, 2, 3, 7, 31):
        assert torch.equal(packed.multiply(x[:rows], bias), out[:rows])


class Fickle(BlockedWeight):
    """As oneDNN is on some CPUs: other bits below three rows."""

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        out = super()._product(x, bias)
        return out * 1.000001 if x.shape[0] < 3 else out


def test_rows_are_added_where_few_of_them_would_be_computed_otherwise() -> None:
    generator = torch.Generator().manual_seed(2)
    weight, x = torch.randn(33, 41, generator=generator), torch.randn(70, 41, generator=generator)
    steady = Fickle(weight, batch_invariant=True)
    out = steady.multiply(x, None)
    for rows in (1, 2, 3, 5):
        assert torch.equal(steady.multiply(x[:rows], None), out[:rows])
    assert not torch.equal(Fickle(weight, batch_invariant=False).multiply(x[:1], None), out[:1])


def test_the_cpu_and_the_kernels_decide() -> None:
    weight = torch.randn(16, 16)
    assert isinstance(pack_weight(weight, None, batch_invariant=True), BlockedWeight)
    kind = BlockedWeight if torch.ops.mkldnn._is_mkldnn_bf16_supported() else PanelWeight
    assert isinstance(pack_weight(weight, load_kernels("auto"), batch_invariant=True), kind)

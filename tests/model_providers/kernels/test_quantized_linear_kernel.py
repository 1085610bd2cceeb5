"""The quantized linear kernel against a product of its dequantized weight in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_providers.kernels.library import Kernels

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SLOW_FIXTURE = [HealthCheck.function_scoped_fixture]


def quantize_in_torch(weight: Tensor) -> tuple[Tensor, Tensor]:
    """-> integers (outputs, inputs) and scales (outputs,)."""
    scales = weight.float().abs().amax(1) / 127
    return (weight.float() / scales[:, None]).round().to(torch.int8), scales


@settings(max_examples=30, deadline=None, suppress_health_check=SLOW_FIXTURE)
@given(outputs=st.integers(1, 40), inputs=st.integers(1, 70), spread=st.sampled_from([1e-30, 1, 1e30]), dtype=DTYPES)
def test_each_weight_is_rounded_to_the_nearest_multiple_of_its_scale(
    kernels: Kernels, outputs: int, inputs: int, spread: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(outputs * inputs)
    rows = torch.logspace(-3, 3, outputs)[:, None]  # each output has a magnitude of its own
    weight = (torch.randn(outputs, inputs, generator=generator) * rows * spread).to(dtype)
    panels, scales = kernels.quantize_linear(weight)
    integers = kernels.unpack_linear(panels, outputs)
    expected, expected_scales = quantize_in_torch(weight)
    assert torch.equal(scales[:outputs], expected_scales)
    assert torch.equal(integers, expected)
    assert (integers.abs().amax(1) == 127).all()
    error = (weight.double() - integers.double() * scales[:outputs, None].double()).abs()
    assert (error <= scales[:outputs, None].double() * 0.50001).all()
    assert not scales[outputs:].any()
    assert not panels.transpose(1, 2).reshape(-1, inputs)[outputs:].any()


def test_rows_that_have_no_scale(kernels: Kernels) -> None:
    weight = torch.ones(5, 3)
    weight[0] = 0
    weight[1] = 1e-40
    weight[2, 1] = torch.nan
    weight[3, 2] = -torch.inf
    panels, scales = kernels.quantize_linear(weight)
    assert scales[:2].tolist() == [0, 0]
    assert scales[2:4].isnan().all()
    assert scales[4] == 1 / torch.tensor(127.0)
    assert kernels.unpack_linear(panels, 5).tolist() == [[0] * 3] * 4 + [[127] * 3]


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW_FIXTURE)
@given(
    rows=st.integers(1, 40),
    inputs=st.sampled_from([1, 7, 64, 577]),
    outputs=st.sampled_from([1, 15, 16, 17, 33, 64, 100]),
    dtype=DTYPES,
    biased=st.booleans(),
)
@example(rows=250, inputs=600, outputs=70, dtype=torch.float32, biased=False)  # several blocks of rows
@example(rows=250, inputs=600, outputs=70, dtype=torch.bfloat16, biased=True)
def test_product(kernels: Kernels, rows: int, inputs: int, outputs: int, dtype: torch.dtype, biased: bool) -> None:
    generator = torch.Generator().manual_seed(rows * inputs + outputs)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    panels, scales = kernels.quantize_linear(weight)
    out = kernels.quantized_linear(x, panels, scales, outputs, bias if biased else None)
    assert out.dtype == dtype
    integers, expected_scales = quantize_in_torch(weight)
    served = integers.double() * expected_scales[:, None].double()
    expected = x.double() @ served.T + (bias.double() if biased else 0)
    relative = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out.double(), expected, rtol=relative, atol=relative * inputs**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_a_row_has_the_same_bits_among_others_and_on_more_threads(
    kernels: Kernels, dtype: torch.dtype, biased: bool
) -> None:
    generator = torch.Generator().manual_seed(5)
    outputs, inputs = 85, 611
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((240, inputs), (outputs, inputs), (outputs,))
    )
    panels, scales = kernels.quantize_linear(weight)

    def product(first: int, rows: int) -> Tensor:
        part = x[first : first + rows].clone()
        return kernels.quantized_linear(part, panels, scales, outputs, bias if biased else None)

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = product(0, len(x))
        for count in (1, 2):
            torch.set_num_threads(count)
            assert torch.equal(product(0, len(x)), whole)
            for rows in (*range(1, 41), 109, 200):
                assert torch.equal(product(240 - rows, rows), whole[-rows:]), rows
    finally:
        torch.set_num_threads(threads)

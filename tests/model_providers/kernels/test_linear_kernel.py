"""The linear kernel against a product in double precision; a row's bits do not depend on how many there are."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_providers.kernels.library import Kernels


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.sampled_from([1, 2, 5, 6, 7, 13, 150]),
    inputs=st.sampled_from([1, 7, 64, 577]),
    outputs=st.sampled_from([1, 15, 16, 17, 100]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    biased=st.booleans(),
)
def test_linear(kernels: Kernels, rows: int, inputs: int, outputs: int, dtype: torch.dtype, biased: bool) -> None:
    generator = torch.Generator().manual_seed(rows * inputs + outputs)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    panels = kernels.pack_linear(weight)
    out = kernels.linear(x, panels, outputs, bias if biased else None)
    assert out.dtype == dtype
    expected = x.double() @ weight.double().T + (bias.double() if biased else 0)
    relative = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out.double(), expected, rtol=relative, atol=relative * inputs**0.5)
    one = kernels.linear(x[-1:].clone(), panels, outputs, bias if biased else None)
    assert torch.equal(one, out[-1:])
    assert torch.equal(kernels.unpack_linear(panels, outputs), weight)

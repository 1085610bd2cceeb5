"""Log-sum-exp and the largest logit of each row, against torch's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_providers.kernels.library import Kernels


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.sampled_from([1, 2, 5]),
    width=st.sampled_from([1, 3, 16, 131, 1000, 49157]),
    padding=st.sampled_from([0, 5]),
    size=st.sampled_from([0.1, 3.0, 40.0]),
)
def test_of_each_row(kernels: Kernels, rows: int, width: int, padding: int, size: float) -> None:
    whole = torch.randn(rows, width + padding, generator=torch.Generator().manual_seed(width)) * size
    logits = whole[:, :width]
    torch.testing.assert_close(
        kernels.log_sum_exp(logits).double(), logits.double().logsumexp(-1), rtol=1e-6, atol=1e-6
    )
    values, indices = kernels.largest(logits)
    expected = logits.max(-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(logits.gather(1, indices[:, None])[:, 0], expected.values)
    assert torch.equal(kernels.log_sum_exp(logits[-1:]), kernels.log_sum_exp(logits)[-1:])


@pytest.mark.parametrize("place", [0, 8, 36])
def test_what_is_not_finite_shows(kernels: Kernels, place: int) -> None:
    logits = torch.zeros(3, 37)
    logits[0, place] = float("nan")
    logits[1, place] = float("inf")
    logits[2] = float("-inf")
    values, indices = kernels.largest(logits)
    assert torch.equal(values.isfinite(), torch.tensor([False, False, False]))
    assert values[0].isnan()
    assert indices[1] == place
    assert not kernels.log_sum_exp(logits).isfinite().any()


def test_the_first_of_equals_is_taken(kernels: Kernels) -> None:
    logits = torch.zeros(1, 50)
    logits[0, [17, 18, 49]] = 2.0
    assert kernels.largest(logits)[1].tolist() == [17]

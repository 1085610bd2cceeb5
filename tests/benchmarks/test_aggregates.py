"""Medians, percentiles and the choice of decode steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.aggregates import StepTime, describe_steps, median, p50_and_p95, percentile


@given(
    st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40),
    st.floats(0, 100, allow_subnormal=False),
)
def test_percentiles_are_numpy_s(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_p50_and_p95() -> None:
    assert p50_and_p95([float(value) for value in range(101)]) == {"p50": 50.0, "p95": 95.0}
    assert median([3.0, 1.0]) == 2.0


def test_nothing_measured_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_steps_of_the_most_frequent_batch_count() -> None:
    steps = [StepTime(0.5, 1), *(StepTime(seconds, 32) for seconds in (0.01, 0.02, 0.03)), StepTime(0.9, 7)]
    assert describe_steps(steps) == {
        "median": pytest.approx(20),
        "p95": pytest.approx(29),
        "batch_size": 32,
        "num_steps": 3,
    }


def test_of_equally_frequent_batches_the_larger_one_counts() -> None:
    assert describe_steps([StepTime(0.1, 2), StepTime(0.2, 4)])["batch_size"] == 4


def test_no_steps() -> None:
    assert describe_steps([])["median"] is None

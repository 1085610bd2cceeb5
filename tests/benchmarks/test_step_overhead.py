"""The cost of a step beside its arithmetic, at a small batch."""

from __future__ import annotations

from benchmarks.step_overhead import NUM_LAYERS, measure


def test_a_small_batch_is_measured() -> None:
    result = measure(repetitions=1, threads=1, batch_sizes=(3,))
    (point,) = result["by_batch"]
    assert point["step_ms"]["batch_size"] == 3
    assert point["step_ms"]["num_steps"] > 50
    assert point["step_ms"]["median"] > 0
    assert result["num_layers"] == NUM_LAYERS == 30

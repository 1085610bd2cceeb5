"""Many measurements in a few numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple


class StepTime(NamedTuple):
    """One decode step: how long it took, and how many sequences it advanced by one token each."""

    seconds: float
    batch_size: int


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the closest ranks, as numpy's default. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """The 50th percentile."""
    return percentile(values, 50)


def p50_and_p95(seconds: Sequence[float]) -> dict[str, float]:
    """In the unit they came in."""
    return {"p50": percentile(seconds, 50), "p95": percentile(seconds, 95)}


def describe_steps(steps: Sequence[StepTime]) -> dict[str, Any]:
    """Milliseconds of the decode steps with the most frequent batch size (the larger one of equally frequent ones).

    Steps of other sizes, while requests come in or run out, cost something else and would blur the figure.
    """
    sizes = Counter(step.batch_size for step in steps)
    if not sizes:
        return {"median": None, "p95": None, "batch_size": None, "num_steps": 0}
    batch_size = max(sizes, key=lambda size: (sizes[size], size))
    milliseconds = [step.seconds * 1000 for step in steps if step.batch_size == batch_size]
    return {
        "median": median(milliseconds),
        "p95": percentile(milliseconds, 95),
        "batch_size": batch_size,
        "num_steps": len(milliseconds),
    }

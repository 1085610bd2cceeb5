"""What several ranks gained: Amdahl's prediction from the ranks' own times, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """One replica's part. inference_seconds: from the common start until its last answer. barrier_wait_seconds: from
    then until the slowest was done."""

    rank: int
    questions: int
    inference_seconds: float
    barrier_wait_seconds: float


def session_timing(times: Sequence[RankTime], wall_seconds: float) -> dict[str, Any]:
    """{replicas, ranks, wall_seconds, serial_seconds, predicted_speed_up, measured_speed_up, ...}.

    wall_seconds: of the whole session up to the gathering. serial_seconds: of these, what no replica shortens: all but
    the slowest replica's inference. With P the sum of the inference times and S the serial time, Amdahl's law (1967)
    predicts (S + P) / (S + P / W) for W replicas; the session took S + P over the wall's time. The second is smaller by
    as much as the replicas' times differ.
    """
    inference = [one.inference_seconds for one in times]
    parallel = math.fsum(inference)
    serial = max(0.0, wall_seconds - max(inference))
    replicas = len(times)
    return {
        "replicas": replicas,
        "ranks": [asdict(one) for one in times],
        "wall_seconds": wall_seconds,
        "serial_seconds": serial,
        "predicted_speed_up": _ratio(serial + parallel, serial + parallel / replicas),
        "measured_speed_up": _ratio(serial + parallel, serial + max(inference)),
        "max_minus_min_seconds": max(inference) - min(inference),
        "longest_barrier_wait_seconds": max(one.barrier_wait_seconds for one in times),
    }


def timing_lines(timing: Mapping[str, Any]) -> list[str]:
    """For a person."""
    ranks = timing["ranks"]
    lines = [
        f"Rank {one['rank']:<5} {one['questions']} questions, inference {one['inference_seconds']:.2f} s, "
        f"then waited {one['barrier_wait_seconds']:.2f} s"
        for one in ranks
    ]
    return [
        "Offline    times of the last session without a server:",
        *lines,
        f"Replicas   W = {timing['replicas']}, serial {timing['serial_seconds']:.2f} s of "
        f"{timing['wall_seconds']:.2f} s; speed-up {timing['measured_speed_up']:.2f}, by Amdahl's law "
        f"{timing['predicted_speed_up']:.2f}",
        f"Barrier    longest wait {timing['longest_barrier_wait_seconds']:.2f} s; slowest less fastest rank "
        f"{timing['max_minus_min_seconds']:.2f} s",
    ]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 1.0

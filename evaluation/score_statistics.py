"""Mean, standard error and interval of a set of scores."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

Z95 = 1.959963984540054  # the normal distribution's 97.5 % quantile


class Observation(NamedTuple):
    """One row's score. cluster: rows of one cluster (questions on one image) are not taken for independent.
    group: rows of one group count as one, as right as the least right of them (rotations of one question)."""

    score: float
    is_answered: bool
    cluster: str
    group: str


def describe(observations: Sequence[Observation]) -> dict[str, Any]:
    """{mean, stderr, n, ci95, mean_answered, n_answered}.

    mean: failures count as wrong. mean_answered: groups with a failure are left out, None when nothing is left.
    stderr: clustered; without clusters, the sample standard deviation over the root of n. ci95: Wilson's interval for
    as many independent rows as that standard error amounts to, so it has a width even when all are right.
    """
    groups = _merge_groups(observations)
    scores = [one.score for one in groups]
    clusters = [one.cluster for one in groups]
    mean = math.fsum(scores) / len(scores)
    stderr = clustered_stderr(scores, clusters)
    answered = [one.score for one in groups if one.is_answered]
    return {
        "mean": mean,
        "stderr": stderr,
        "n": len(scores),
        "ci95": list(wilson_interval(mean, stderr, len(set(clusters)))),
        "mean_answered": math.fsum(answered) / len(answered) if answered else None,
        "n_answered": len(answered),
    }


def clustered_stderr(scores: Sequence[float], clusters: Sequence[str]) -> float:
    """Standard error of the mean when scores within a cluster may move together (Miller 2024, "Adding Error Bars to
    Evals"), with the correction for a small number of clusters; 0 for a single cluster."""
    n = len(scores)
    mean = math.fsum(scores) / n
    residuals: dict[str, list[float]] = defaultdict(list)
    for score, cluster in zip(scores, clusters, strict=True):
        residuals[cluster].append(score - mean)
    count = len(residuals)
    if count < 2:
        return 0.0
    total = math.fsum(math.fsum(one) ** 2 for one in residuals.values())
    return math.sqrt(total * count / (count - 1)) / n


def wilson_interval(mean: float, stderr: float, num_clusters: int) -> tuple[float, float]:
    """Wilson's score interval (1927) for a mean between 0 and 1. Without any spread, the number of clusters stands for
    the number of independent rows."""
    spread = mean * (1 - mean)
    n = spread / stderr**2 if stderr > 0 and spread > 0 else float(num_clusters)
    centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * math.sqrt(spread / n + Z95**2 / (4 * n**2)) / (1 + Z95**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def _merge_groups(observations: Sequence[Observation]) -> list[Observation]:
    members: dict[str, list[Observation]] = defaultdict(list)
    for observation in observations:
        members[observation.group].append(observation)
    return [
        Observation(min(one.score for one in group), all(one.is_answered for one in group), group[0].cluster, name)
        for name, group in members.items()
    ]

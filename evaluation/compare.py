"""Two runs on the same rows: the paired difference of their scores, and the rows that flipped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.errors import RunDirectoryError
from evaluation.finish import final_records
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.open_run import OpenRun
from evaluation.score_statistics import Z95, clustered_stderr
from evaluation.scorers import Scorer, ScorerName, choose_scorers
from evaluation.scoring import ScoredRow, score_run


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A row whose score differs. prediction_a and prediction_b: what the answers were taken to say."""

    item_id: str
    score_a: float
    score_b: float
    prediction_a: str | None
    prediction_b: str | None
    gold: list[str]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One scorer, or A's and B's. n: rows that both runs have an outcome for. difference: mean of B minus
    mean of A over these rows; its standard error and 95 % interval are those of the paired differences, clustered by
    image."""

    scorer: str
    n: int
    mean_a: float
    mean_b: float
    difference: float
    stderr: float
    ci95: tuple[float, float]
    flips: list[Flip]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def scorer_pairs(a: OpenRun, b: OpenRun, name: ScorerName) -> list[tuple[Scorer, Scorer]]:
    """What judges A and what judges B: the same, or, where other types of requests were asked and nothing judges both,
    the first of each. DatasetError when the one named does not fit."""
    of_a = choose_scorers(name, a.items, a.manifest.request_type)
    if a.manifest.request_type == b.manifest.request_type:
        return [(scorer, scorer) for scorer in of_a]
    return list(zip(of_a, choose_scorers(name, b.items, b.manifest.request_type), strict=False))[:1]


def compare_runs(a: OpenRun, b: OpenRun, scorers: Sequence[tuple[Scorer, Scorer]]) -> list[Comparison]:
    """Both runs, each judged by its scorer of a pair. RunDirectoryError when they have no row in common."""
    compared = []
    for scorer_a, scorer_b in scorers:
        rows_a, rows_b = _scored(a, scorer_a), _scored(b, scorer_b)
        shared = [item for item in a.items if item.item_id in rows_a and item.item_id in rows_b]
        if not shared:
            continue
        pairs = [(rows_a[item.item_id], rows_b[item.item_id]) for item in shared]
        clusters = [" ".join(item.images) or item.item_id for item in shared]
        name = scorer_a.name if scorer_a is scorer_b else f"{scorer_a.name}, {scorer_b.name}"
        compared.append(_compare(name, pairs, clusters))
    if not compared:
        raise RunDirectoryError(f"{a.layout.root} and {b.layout.root} have no scored row in common")
    return compared


def _scored(run: OpenRun, scorer: Scorer) -> dict[str, ScoredRow]:
    records = final_records(run, read_logs(run.layout.log)).by_key
    return {row.item_id: row for row in score_run(run.items, records, scorer).rows}


def _compare(name: str, pairs: Sequence[tuple[ScoredRow, ScoredRow]], clusters: Sequence[str]) -> Comparison:
    differences = [b.score - a.score for a, b in pairs]
    count = len(pairs)
    difference = math.fsum(differences) / count
    stderr = clustered_stderr(differences, clusters)
    return Comparison(
        scorer=name,
        n=count,
        mean_a=math.fsum(a.score for a, _ in pairs) / count,
        mean_b=math.fsum(b.score for _, b in pairs) / count,
        difference=difference,
        stderr=stderr,
        ci95=(difference - Z95 * stderr, difference + Z95 * stderr),
        flips=[
            Flip(
                item_id=a.item_id,
                score_a=a.score,
                score_b=b.score,
                prediction_a=a.prediction,
                prediction_b=b.prediction,
                gold=a.gold,
            )
            for a, b in pairs
            if a.score != b.score
        ],
    )

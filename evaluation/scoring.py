"""Scores of a whole run: a verdict per row, then mean and standard error. Failures count as wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem
from evaluation.scorers import Scorer, Verdict


@dataclass(frozen=True, kw_only=True)
class ScoredRow:
    """One row of scores/<scorer>.jsonl. rule: which rule decided; "not_answered" for a failure."""

    key: str
    item_id: str
    row: int
    scorer: str
    status: str
    score: float
    prediction: str | None
    gold: list[str]
    rule: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score_rows(items: Sequence[RunItem], records: Mapping[str, Record], scorer: Scorer) -> list[ScoredRow]:
    """Verdicts on all rows that have an outcome and that the scorer applies to, in the order of the data file.

    A bad row (`client_data`) has lost what it would take to judge it, and counts as wrong with every scorer of the run.
    """
    rows = []
    for item in items:
        record = records.get(item.key)
        if record is None or not (scorer.applies(item) or item.error):
            continue
        verdict = Verdict(0.0, None, "not_answered")
        if record.answer is not None and record.status.is_answered:
            verdict = scorer.judge(record.answer, item)
        rows.append(
            ScoredRow(
                key=item.key,
                item_id=item.item_id,
                row=item.row,
                scorer=scorer.name,
                status=record.status.value,
                gold=list(item.references),
                **verdict._asdict(),
            )
        )
    return rows


def aggregate(scores: Sequence[float]) -> dict[str, float | int]:
    """{mean, stderr, n}. stderr: sample standard deviation over the root of n; 0 for a single row."""
    n = len(scores)
    mean = math.fsum(scores) / n
    variance = math.fsum((score - mean) ** 2 for score in scores) / (n - 1) if n > 1 else 0.0
    return {"mean": mean, "stderr": math.sqrt(variance / n), "n": n}

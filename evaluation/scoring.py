"""Scores of a whole run: a verdict per row, then the figures over all of them. Failures count as wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem
from evaluation.score_statistics import Observation, describe
from evaluation.scorers import Scorer, Verdict

CATEGORY_COLUMNS = ("category", "l2-category")


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


@dataclass(frozen=True)
class Scored:
    """What one scorer says about a run. summary: {mean, stderr, n, ci95, mean_answered, n_answered, ...}.
    categories: column to category to {mean, stderr, n}."""

    rows: list[ScoredRow]
    summary: dict[str, Any]
    categories: dict[str, dict[str, dict[str, Any]]]


def score_run(items: Sequence[RunItem], records: Mapping[str, Record], scorer: Scorer) -> Scored:
    """Verdicts on all rows that have an outcome and that the scorer applies to, in the order of the data.

    A bad row (`client_data`) has lost what it would take to judge it, and counts as wrong with every scorer of the run.
    """
    judged = [
        (item, record, _verdict(item, record, scorer))
        for item in items
        if (record := records.get(item.key)) is not None and (scorer.applies(item) or item.error)
    ]
    observations = [_observation(*row, scorer) for row in judged]
    rows = [_scored_row(*row, scorer) for row in judged]
    if not rows:
        return Scored([], {}, {})
    summary = describe(observations) | scorer.extras(judged)
    return Scored(rows, summary, _by_category([item for item, _, _ in judged], observations))


def _verdict(item: RunItem, record: Record, scorer: Scorer) -> Verdict:
    if record.answer is None or not record.status.is_answered:
        return Verdict(0.0, None, "not_answered")
    return scorer.judge(record, item)


def _observation(item: RunItem, record: Record, verdict: Verdict, scorer: Scorer) -> Observation:
    return Observation(
        score=verdict.score,
        is_answered=record.status.is_answered,
        # Questions on the same images are not independent of each other.
        cluster=" ".join(item.images) or item.key,
        group=scorer.group(item) if scorer.group else item.key,
    )


def _scored_row(item: RunItem, record: Record, verdict: Verdict, scorer: Scorer) -> ScoredRow:
    return ScoredRow(
        key=item.key,
        item_id=item.item_id,
        row=item.row,
        scorer=scorer.name,
        status=record.status.value,
        gold=list(item.references),
        **verdict._asdict(),
    )


def _by_category(items: Sequence[RunItem], observations: Sequence[Observation]) -> dict[str, dict[str, dict[str, Any]]]:
    categories: dict[str, dict[str, dict[str, Any]]] = {}
    for column in CATEGORY_COLUMNS:
        members: dict[str, list[Observation]] = defaultdict(list)
        for item, observation in zip(items, observations, strict=True):
            if value := item.columns.get(column, ""):
                members[value].append(observation)
        if members:
            figures = {value: describe(members[value]) for value in sorted(members)}
            categories[column] = {
                value: {name: one[name] for name in ("mean", "stderr", "n")} for value, one in figures.items()
            }
    return categories

"""The scorers by name, and which of them fit a set of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from evaluation.errors import DatasetError
from evaluation.run_directory.run_item import RunItem
from evaluation.scorers.exact_match import judge_exact_match
from evaluation.scorers.mcq import judge_mcq
from evaluation.scorers.verdict import Verdict


class ScorerName(StrEnum):
    """Values of --scorer. AUTO: mcq for rows with options, exact_match for the others. NONE: no score."""

    AUTO = "auto"
    MCQ = "mcq"
    EXACT_MATCH = "exact_match"
    NONE = "none"


@dataclass(frozen=True)
class Scorer:
    """applies: whether a row can be scored so. judge: verdict on the answer to such a row. needs: columns, in words."""

    name: str
    applies: Callable[[RunItem], bool]
    judge: Callable[[str, RunItem], Verdict]
    needs: str


def _mcq(answer: str, item: RunItem) -> Verdict:
    return judge_mcq(answer, item.options, item.references[0])


def _exact_match(answer: str, item: RunItem) -> Verdict:
    return judge_exact_match(answer, item.references)


SCORERS = {
    ScorerName.MCQ: Scorer(
        "mcq", lambda item: bool(item.options and item.references), _mcq, "options (columns A, B, ...) and an answer"
    ),
    ScorerName.EXACT_MATCH: Scorer(
        "exact_match", lambda item: bool(item.references and not item.options), _exact_match, "an answer and no options"
    ),
}


def choose_scorers(name: ScorerName, items: Sequence[RunItem]) -> list[Scorer]:
    """The scorers to run, before anything is asked; DatasetError when the one named fits no row at all."""
    if name is ScorerName.NONE:
        return []
    if name is ScorerName.AUTO:
        return [scorer for scorer in SCORERS.values() if any(map(scorer.applies, items))]
    scorer = SCORERS[name]
    if not any(map(scorer.applies, items)):
        raise DatasetError(f"--scorer {name} needs rows with {scorer.needs}; no row has that")
    return [scorer]

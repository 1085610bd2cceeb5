"""The scorers by name, and which of them fit a set of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from evaluation.errors import DatasetError
from evaluation.request_types.names import RequestType
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem
from evaluation.scorers.anls import judge_anls
from evaluation.scorers.circular import circular_group
from evaluation.scorers.contains import judge_contains
from evaluation.scorers.exact_match import judge_exact_match
from evaluation.scorers.likelihood import judge_greedy, judge_likeliest, perplexity_of
from evaluation.scorers.mcq import judge_mcq
from evaluation.scorers.relaxed_accuracy import judge_relaxed
from evaluation.scorers.verdict import Verdict
from evaluation.scorers.vqa import judge_vqa
from evaluation.scorers.yes_no import YesNoRow, acc_plus_of, f1_of, gold_yes_no, judge_yes_no


class ScorerName(StrEnum):
    """Values of --scorer. AUTO: what the rows allow. NONE: no score."""

    AUTO = "auto"
    MCQ = "mcq"
    MCQ_CIRCULAR = "mcq_circular"
    EXACT_MATCH = "exact_match"
    YES_NO = "yes_no"
    VQA = "vqa"
    ANLS = "anls"
    RELAXED = "relaxed"
    CONTAINS = "contains"
    LIKELIHOOD = "likelihood"
    LIKELIHOOD_NORM = "likelihood_norm"
    GREEDY = "greedy"
    NONE = "none"


type JudgedRow = tuple[RunItem, Record, Verdict]


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """applies: whether a row can be scored so. judge: verdict on an answered record. needs: columns, in words.

    group: rows of one group count as one, as right as the least right of them. extras: further figures over all rows.
    request_types: whose records it can judge.
    """

    name: str
    applies: Callable[[RunItem], bool]
    judge: Callable[[Record, RunItem], Verdict]
    needs: str
    group: Callable[[RunItem], str] | None = None
    extras: Callable[[Sequence[JudgedRow]], dict[str, float]] = lambda _: {}
    request_types: frozenset[RequestType] = frozenset({RequestType.GENERATE_UNTIL, RequestType.MULTI_ROUND})


def _has_choices(item: RunItem) -> bool:
    return bool(item.options and item.references)


def _is_open(item: RunItem) -> bool:
    return bool(item.references and not item.options)


def _by_references(judge: Callable[[str, Sequence[str]], Verdict]) -> Callable[[Record, RunItem], Verdict]:
    return lambda record, item: judge(record.answer or "", item.references)


def _mcq(record: Record, item: RunItem) -> Verdict:
    return judge_mcq(record.answer or "", item.options, item.references[0])


def _contains(record: Record, item: RunItem) -> Verdict:
    return judge_contains(record.answer or "", item.references, item.columns.get("category", ""))


def _likeliest(normalized: bool) -> Callable[[Record, RunItem], Verdict]:
    return lambda record, item: judge_likeliest(record.likelihoods or (), item.references[0], normalized=normalized)


def _yes_no_extras(rows: Sequence[JudgedRow]) -> dict[str, float]:
    judged = [
        YesNoRow(gold_yes_no(item.references) or "", verdict.prediction, " ".join(item.images))
        for item, _, verdict in rows
    ]
    acc_plus = acc_plus_of(judged)
    return f1_of(judged) | ({} if acc_plus is None else {"acc_plus": acc_plus})


def _greedy_extras(rows: Sequence[JudgedRow]) -> dict[str, float]:
    perplexity = perplexity_of(one for _, record, _ in rows for one in record.likelihoods or ())
    return {} if perplexity is None else {"perplexity": perplexity}


_OPEN = "an answer and no options"
_CHOICES = "options (columns A, B, ...) and an answer"
_MULTIPLE_CHOICE = frozenset({RequestType.MULTIPLE_CHOICE})

_ALL: tuple[Scorer, ...] = (
    Scorer(name="mcq", applies=_has_choices, judge=_mcq, needs=_CHOICES),
    Scorer(
        name="mcq_circular",
        applies=_has_choices,
        judge=_mcq,
        needs=_CHOICES,
        group=lambda item: circular_group(item.columns),
    ),
    Scorer(name="exact_match", applies=_is_open, judge=_by_references(judge_exact_match), needs=_OPEN),
    Scorer(
        name="yes_no",
        applies=lambda item: _is_open(item) and gold_yes_no(item.references) is not None,
        judge=_by_references(judge_yes_no),
        needs="the answer yes or no",
        extras=_yes_no_extras,
    ),
    Scorer(name="vqa", applies=_is_open, judge=_by_references(judge_vqa), needs=_OPEN),
    Scorer(name="anls", applies=_is_open, judge=_by_references(judge_anls), needs=_OPEN),
    Scorer(name="relaxed", applies=_is_open, judge=_by_references(judge_relaxed), needs=_OPEN),
    Scorer(name="contains", applies=_is_open, judge=_contains, needs=_OPEN),
    Scorer(
        name="likelihood",
        applies=_has_choices,
        judge=_likeliest(False),
        needs=_CHOICES,
        request_types=_MULTIPLE_CHOICE,
    ),
    Scorer(
        name="likelihood_norm",
        applies=_has_choices,
        judge=_likeliest(True),
        needs=_CHOICES,
        request_types=_MULTIPLE_CHOICE,
    ),
    Scorer(
        name="greedy",
        applies=lambda item: bool(item.references),
        judge=lambda record, _: judge_greedy(record.likelihoods or ()),
        needs="an answer",
        extras=_greedy_extras,
        request_types=frozenset({RequestType.LOGLIKELIHOOD}),
    ),
)
SCORERS: dict[ScorerName, Scorer] = {ScorerName(scorer.name): scorer for scorer in _ALL}


def choose_scorers(
    name: ScorerName, items: Sequence[RunItem], request_type: RequestType = RequestType.GENERATE_UNTIL
) -> list[Scorer]:
    """The scorers to run, before anything is asked; DatasetError when the one named fits no row, or no such request."""
    if name is ScorerName.NONE:
        return []
    if name is ScorerName.AUTO:
        candidates = [SCORERS[one] for one in _automatic(items, request_type)]
        return [scorer for scorer in candidates if any(map(scorer.applies, items))]
    scorer = SCORERS[name]
    if request_type not in scorer.request_types:
        wanted = " or ".join(sorted(scorer.request_types))
        raise DatasetError(f"--scorer {name} judges answers of --request-type {wanted}, not {request_type.value}")
    if not any(map(scorer.applies, items)):
        raise DatasetError(f"--scorer {name} needs rows with {scorer.needs}; no row has that")
    return [scorer]


def _automatic(items: Sequence[RunItem], request_type: RequestType) -> list[ScorerName]:
    match request_type:
        case RequestType.MULTIPLE_CHOICE:
            return [ScorerName.LIKELIHOOD, ScorerName.LIKELIHOOD_NORM]
        case RequestType.LOGLIKELIHOOD:
            return [ScorerName.GREEDY]
    names = [ScorerName.MCQ, ScorerName.EXACT_MATCH]
    if any(_has_choices(item) and item.columns.get("g_index") for item in items):
        names.append(ScorerName.MCQ_CIRCULAR)
    open_rows = [item for item in items if _is_open(item)]
    if open_rows and all(gold_yes_no(item.references) for item in open_rows):
        names.append(ScorerName.YES_NO)
    return names

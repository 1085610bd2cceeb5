"""ANLS, average normalised Levenshtein similarity (Biten et al. 2019): DocVQA, InfographicVQA, ST-VQA."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.scorers.verdict import Verdict

THRESHOLD = 0.5


def judge_anls(answer: str, references: Sequence[str]) -> Verdict:
    """The similarity to the nearest reference, 0 below the threshold. Case and runs of blanks do not count."""
    prediction = _normalize(answer)
    best = max((similarity(prediction, _normalize(reference)) for reference in references), default=0.0)
    if best < THRESHOLD:
        return Verdict(0.0, prediction, "below_threshold")
    return Verdict(best, prediction, "equal" if best == 1.0 else "similar")


def similarity(left: str, right: str) -> float:
    """1 minus the edit distance over the longer length; 1 for two empty texts."""
    longest = max(len(left), len(right))
    if not longest:
        return 1.0
    # The distance is at least the difference in length: a long answer to a short question needs no table.
    if abs(len(left) - len(right)) > (1 - THRESHOLD) * longest:
        return 0.0
    return 1.0 - edit_distance(left, right) / longest


def edit_distance(left: str, right: str) -> int:
    """Levenshtein's distance: insertions, deletions and substitutions cost 1."""
    previous = list(range(len(right) + 1))
    for row, character in enumerate(left, start=1):
        current = [row]
        for column, other in enumerate(right, start=1):
            substituted = previous[column - 1] + (character != other)
            current.append(min(substituted, previous[column] + 1, current[-1] + 1))
        previous = current
    return previous[-1]


def _normalize(text: str) -> str:
    return " ".join(text.lower().split())

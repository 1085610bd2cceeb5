"""Exact match after normalisation: the answer equals one of the references."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from evaluation.scorers.verdict import Verdict


def judge_exact_match(answer: str, references: Sequence[str]) -> Verdict:
    """1 when the normalised answer equals a normalised reference, else 0."""
    prediction = normalize(answer)
    hit = prediction in map(normalize, references)
    return Verdict(float(hit), prediction, "equal" if hit else "different")


def normalize(text: str) -> str:
    """Unicode NFKC, case folded, runs of blanks as one space, none at the ends, one full stop at the end dropped."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.removesuffix(".").rstrip()

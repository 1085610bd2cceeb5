"""OCRBench's rule: an answer is right when it contains any of the references."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.scorers.verdict import Verdict

# The category whose references are LaTeX, where case means something and blanks do not.
FORMULAS = "Handwritten Mathematical Expression Recognition"


def judge_contains(answer: str, references: Sequence[str], category: str = "") -> Verdict:
    """1 when a reference that is not empty is contained, in lower case; formulas keep their case and lose blanks."""
    normalize = _formula if category == FORMULAS else _plain
    prediction = normalize(answer)
    hit = any(reference and reference in prediction for reference in map(normalize, references))
    return Verdict(float(hit), prediction, "contained" if hit else "absent")


def _plain(text: str) -> str:
    return text.lower().strip().replace("\n", " ")


def _formula(text: str) -> str:
    return text.strip().replace("\n", " ").replace(" ", "")

"""Relaxed accuracy (ChartQA, Masry et al. 2022, section 5.1): numbers within 5 %, anything else equal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evaluation.scorers.verdict import Verdict

TOLERANCE = 0.05


def judge_relaxed(answer: str, references: Sequence[str]) -> Verdict:
    """1 when any reference is met. `%` divides by 100. A gold of zero is met by any way to write zero alone;
    VLMEvalKit compares it as text, so that "0.0" misses "0" there."""
    prediction = answer.strip()
    rules = [rule for reference in references if (rule := _rule_met(prediction, reference.strip()))]
    return Verdict(float(bool(rules)), prediction, rules[0] if rules else "different")


def _rule_met(prediction: str, gold: str) -> str | None:
    if prediction.lower() == gold.lower():
        return "equal"
    said, right = parse_number(prediction), parse_number(gold)
    if said is None or right is None:
        return None
    if right == 0:
        return "zero" if said == 0 else None
    # Divided, not multiplied, as the published code does: it decides what lies on the edge.
    return "within_tolerance" if abs(said - right) / abs(right) <= TOLERANCE else None


def parse_number(text: str) -> float | None:
    """A finite number, a percentage as its hundredth; None for anything else."""
    try:
        value = float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None

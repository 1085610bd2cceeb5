"""Yes or no: accuracy row by row; F1 over all rows; acc+ over images (MME: both questions on an image right)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from evaluation.scorers.verdict import Verdict

_WORDS = re.compile(r"[a-z]+")


class YesNoRow(NamedTuple):
    """prediction: "yes", "no" or None. image: what tells one image from another, "" for none."""

    gold: str
    prediction: str | None
    image: str


def judge_yes_no(answer: str, references: Sequence[str]) -> Verdict:
    """1 when the answer says what the reference says. An answer with both words, or neither, is unknown: a miss."""
    prediction = read_yes_no(answer)
    return Verdict(float(prediction == gold_yes_no(references)), prediction, prediction or "unknown")


def read_yes_no(text: str) -> str | None:
    """ "yes" for a text with the word yes and without no, "no" the other way round."""
    words = set(_WORDS.findall(text.lower()))
    if ("yes" in words) == ("no" in words):
        return None
    return "yes" if "yes" in words else "no"


def gold_yes_no(references: Sequence[str]) -> str | None:
    """The reference as "yes" or "no", None when it is neither."""
    word = references[0].strip().lower() if references else ""
    return word if word in ("yes", "no") else None


def f1_of(rows: Iterable[YesNoRow]) -> dict[str, float]:
    """{f1, precision, recall} of "yes", 0 where they are undefined. An unknown answer is no "yes"."""
    pairs = [(row.gold, row.prediction) for row in rows]
    hits = pairs.count(("yes", "yes"))
    said = sum(prediction == "yes" for _, prediction in pairs)
    gold = sum(right == "yes" for right, _ in pairs)
    precision, recall = hits / said if said else 0.0, hits / gold if gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return {"f1": f1, "precision": precision, "recall": recall}


def acc_plus_of(rows: Iterable[YesNoRow]) -> float | None:
    """Share of images with every question right; None without images."""
    right: dict[str, bool] = defaultdict(lambda: True)
    for row in rows:
        if row.image:
            right[row.image] &= row.prediction == row.gold
    return sum(right.values()) / len(right) if right else None

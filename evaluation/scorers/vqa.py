"""VQA accuracy: agreement with several people's short answers (Antol et al. 2015, the metric of VQA, TextVQA, OK-VQA).

With four references or more, each is left out in turn and the answer scores min(1, matches among the others / 3); the
mean of these is the score. VLMEvalKit's default does the same for any number, so that a single reference always scores
0 there; here, with fewer than four, equality with any of them scores 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from evaluation.scorers.verdict import Verdict

_MOST_NEEDED = 3
_ARTICLES = frozenset({"a", "an", "the"})
_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_DIGITS = {"none": "0", **{word: str(number) for number, word in enumerate(_NUMBERS)}}
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_THOUSANDS = re.compile(r"\d,\d")
_FULL_STOP = re.compile(r"\.(?!\d)")
_APOSTROPHES = re.compile("['\u2019]")


def judge_vqa(answer: str, references: Sequence[str]) -> Verdict:
    """Score between 0 and 1."""
    prediction = normalize(answer)
    matches = [normalize(reference) == prediction for reference in references]
    count = sum(matches)
    if len(matches) <= _MOST_NEEDED:
        return Verdict(float(count > 0), prediction, "any_reference")
    # Leaving out a reference that matches leaves one match less.
    left_out = [min(1.0, (count - match) / _MOST_NEEDED) for match in matches]
    return Verdict(sum(left_out) / len(left_out), prediction, "leave_one_out")


def normalize(text: str) -> str:
    """As VQA's own evaluation: lower case, no articles, number words as digits, punctuation dropped or made a blank.

    Apostrophes are dropped, so "dont" and "don't" are equal; VQA's evaluation reaches that by a list of contractions.
    """
    text = " ".join(text.lower().split())
    has_thousands = _THOUSANDS.search(text) is not None
    original = text
    for mark in _PUNCTUATION:
        joins_words = f"{mark} " not in original and f" {mark}" not in original and not has_thousands
        text = text.replace(mark, " " if joins_words else "")
    words = _APOSTROPHES.sub("", _FULL_STOP.sub("", text)).split()
    return " ".join(_DIGITS.get(word, word) for word in words if word not in _ARTICLES)

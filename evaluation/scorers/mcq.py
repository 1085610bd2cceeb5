"""Multiple choice: which option an answer names, by VLMEvalKit's rules without its judge, and without a random guess.

1. letter: with `.()[],:;!*#{}` as blanks, the answer holds exactly one option letter as a word of its own, first
   among the last five words;
2. pattern: "answer is X", with the capital perhaps in brackets, all such places naming the same one;
3. text: an answer no longer than twice the options together contains the text of exactly one option (lower case);
else a miss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from evaluation.scorers.verdict import Verdict

_PUNCTUATION = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_LAST_WORDS = 5
# Only a capital names an option here: "the answer is a town" does not.
_PATTERN = re.compile(r"(?i:\banswer\s*(?:is\s*:?|:)\s*(?:option\s+)?)[\s(\[*\"']*([A-Z])(?![A-Za-z'])")


class Extraction(NamedTuple):
    """letter: the option named, None for a miss. rule: "letter", "pattern", "text" or "miss"."""

    letter: str | None
    rule: str


def judge_mcq(answer: str, options: Mapping[str, str], gold: str) -> Verdict:
    """1 when the option that the answer names is `gold`, else 0."""
    letter, rule = extract_option(answer, options)
    return Verdict(float(letter == gold), letter, rule)


def extract_option(answer: str, options: Mapping[str, str]) -> Extraction:
    """The option an answer names. `options`: letter to text."""
    for rule, find in (("letter", _by_letter), ("pattern", _by_pattern), ("text", _by_text)):
        if letter := find(answer, options):
            return Extraction(letter, rule)
    return Extraction(None, "miss")


def _by_letter(answer: str, options: Mapping[str, str]) -> str | None:
    words = answer.translate(_PUNCTUATION).split()
    named = [letter for letter in options if letter in words]
    if len(named) == 1 and words.index(named[0]) >= len(words) - _LAST_WORDS:
        return named[0]
    return None


def _by_pattern(answer: str, options: Mapping[str, str]) -> str | None:
    named = {match[1] for match in _PATTERN.finditer(answer)} & options.keys()
    return named.pop() if len(named) == 1 else None


def _by_text(answer: str, options: Mapping[str, str]) -> str | None:
    if len(answer) > 2 * sum(map(len, options.values())):
        return None
    lowered = answer.lower()
    named = [letter for letter, text in options.items() if text.lower() in lowered]
    return named[0] if len(named) == 1 else None

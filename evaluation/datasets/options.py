"""Options and gold answers of multiple-choice rows."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

LETTERS = string.ascii_uppercase


def options_of_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """Options of a table row: columns A, B, ... with text in them, letter to text."""
    return {letter: columns[letter] for letter in LETTERS if columns.get(letter, "").strip()}


def options_of_choices(choices: Sequence[str]) -> dict[str, str]:
    """Options of a list of choices; ValueError when they are too few, too many or not distinct."""
    if not 2 <= len(choices) <= len(LETTERS):
        raise ValueError(f"a question has 2 to {len(LETTERS)} choices, this one has {len(choices)}")
    if len(set(choices)) != len(choices):
        raise ValueError("two choices are equal")
    return dict(zip(LETTERS, choices, strict=False))


def gold_letter(answer: str, options: Mapping[str, str]) -> str:
    """The letter of the right option, given as that letter or as the option's own text; ValueError for neither."""
    stripped = answer.strip()
    if stripped.upper() in options:
        return stripped.upper()
    matches = [letter for letter, text in options.items() if text.strip() == stripped]
    if len(matches) == 1:
        return matches[0]
    raise ValueError(f"answer {answer[:80]!r} is neither an option's letter nor its text")

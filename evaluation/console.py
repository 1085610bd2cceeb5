"""What a person is told on standard error while a command works."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_MOST_WARNINGS = 20


def say(line: str) -> None:
    """One line."""
    print(line, file=sys.stderr, flush=True)


def warn(lines: Sequence[str]) -> None:
    """One warning each, the first of them when there are many."""
    for line in lines[:_MOST_WARNINGS]:
        say(f"Warning: {line}")
    if len(lines) > _MOST_WARNINGS:
        say(f"Warning: and {len(lines) - _MOST_WARNINGS} more of this kind")

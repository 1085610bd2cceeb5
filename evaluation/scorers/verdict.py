"""What a scorer says about one answer."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """score: from 0 to 1. prediction: what the answer was taken to say, None when nothing could be made of it.

    rule: which rule decided, so that every score can be questioned row by row.
    """

    score: float
    prediction: str | None
    rule: str

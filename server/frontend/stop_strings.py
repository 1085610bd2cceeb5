"""Stop strings, matched on text: what can be shown now, and whether the sequence has ended.

One Knuth-Morris-Pratt automaton per stop string walks over the text. Its state is the length of the longest beginning
of the stop string that the text ends with, which is exactly how much must be held back; so the outcome does not depend
on how the text was cut into pieces.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """text: what can be shown now. matched: the stop string that ended the sequence, None if none did."""

    text: str
    matched: str | None


@functools.lru_cache(maxsize=256)  # a request's sequences have the same stop strings, and so have most requests
def _fallbacks(pattern: str) -> tuple[int, ...]:
    """At i the length of the longest proper border of pattern[:i]."""
    fallbacks = [0] * (len(pattern) + 1)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = fallbacks[length]
        length += pattern[i] == pattern[length]
        fallbacks[i + 1] = length
    return tuple(fallbacks)


class _Automaton:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.state = 0
        self._fallback = _fallbacks(pattern)

    def step(self, character: str) -> bool:
        """Whether the pattern ends at this character."""
        while self.state and self.pattern[self.state] != character:
            self.state = self._fallback[self.state]
        self.state += self.pattern[self.state] == character
        return self.state == len(self.pattern)


class StopStrings:
    """The state of one sequence. The first stop string to be completed wins; of several at once, the longest."""

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        self._automata = [_Automaton(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._include_in_output = include_in_output
        self._held = ""

    def push(self, text: str) -> StopResult:
        """Add text. After a match, nothing more may be pushed."""
        if not self._automata:
            return StopResult(text, None)
        for position, character in enumerate(text, start=1):
            completed = [automaton.pattern for automaton in self._automata if automaton.step(character)]
            if completed:
                return self._finish(self._held + text[:position], completed[0])
        seen = self._held + text
        num_held = max(automaton.state for automaton in self._automata)
        self._held = seen[len(seen) - num_held :]
        return StopResult(seen[: len(seen) - num_held], None)

    def flush(self) -> str:
        """What is held back, when the sequence ended for another reason."""
        held, self._held = self._held, ""
        return held

    def _finish(self, seen: str, stop: str) -> StopResult:
        self._held = ""
        return StopResult(seen if self._include_in_output else seen[: len(seen) - len(stop)], stop)

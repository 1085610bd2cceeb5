"""What the text of an answer consists of, piece by piece, and who tells the pieces apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol


class ContentDelta(NamedTuple):
    """More of the answer itself."""

    text: str


class ReasoningDelta(NamedTuple):
    """More of the reasoning before the answer."""

    text: str


class ToolCallStart(NamedTuple):
    """The model calls a function. call_index: calls of a message are counted from 0."""

    call_index: int
    name: str


class ToolArgumentsDelta(NamedTuple):
    """More of a call's arguments, which together are a JSON text."""

    call_index: int
    text: str


MessageDelta = ContentDelta | ReasoningDelta | ToolCallStart | ToolArgumentsDelta


class MessageParser(Protocol):
    """The state of one answer. The deltas, joined, do not depend on how its text was cut into pieces."""

    def push(self, text: str) -> list[MessageDelta]:
        """What this text makes certain."""

    def flush(self) -> list[MessageDelta]:
        """The rest, at the end of the answer."""


class StepwiseParser(ABC):
    """A parser that deals with its text in steps, each of which may make another possible."""

    def __init__(self) -> None:
        self._text = ""  # not yet dealt with

    def push(self, text: str) -> list[MessageDelta]:
        """What this text makes certain."""
        self._text += text
        deltas: list[MessageDelta] = []
        while self._advance(deltas):
            pass
        return deltas

    @abstractmethod
    def _advance(self, deltas: list[MessageDelta]) -> bool:
        """Deal with what is certain, adding to `deltas`; whether there may be more to deal with."""


def held_back(text: str, tags: tuple[str, ...]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `tags`."""
    longest = min(len(text), max(map(len, tags)) - 1)
    for length in range(longest, 0, -1):
        if any(tag.startswith(text[len(text) - length :]) for tag in tags):
            return length
    return 0


class ContentAroundCalls:
    """The text outside of calls, without the whitespace that only sets calls apart."""

    def __init__(self) -> None:
        self._space = ""
        self._has_calls = False

    def push(self, text: str) -> list[MessageDelta]:
        """More text outside of calls."""
        seen = self._space + text
        shown = seen.rstrip()
        self._space = seen[len(shown) :]
        return [ContentDelta(shown)] if shown else []

    def begin_call(self) -> None:
        """A call follows."""
        self._space = ""
        self._has_calls = True

    def flush(self) -> list[MessageDelta]:
        """The end of the answer."""
        space, self._space = self._space, ""
        return [ContentDelta(space)] if space and not self._has_calls else []

"""Thinking apart from the answer: a pure function of the raw text, so an old run can be split again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Self

COMPATIBLE_TAGS = ("<think>", "</think>")


class ThinkingState(StrEnum):
    """NONE: no tag. CLOSED: one thought, then the answer. CLOSE_ONLY: the opening tag was in the prompt or got lost.
    UNCLOSED: still thinking at the end, so there is no answer. MULTIPLE: several thoughts, the answer after the last.
    SERVER: the server told reasoning and answer apart."""

    NONE = "none"
    CLOSED = "closed"
    CLOSE_ONLY = "close_only"
    UNCLOSED = "unclosed"
    MULTIPLE = "multiple"
    SERVER = "server"


class Split(NamedTuple):
    """answer and reasoning are stripped of blanks around them."""

    answer: str
    reasoning: str
    state: ThinkingState


@dataclass(frozen=True)
class ThinkingSplit:
    """How answers of a run are split. tags: pairs of an opening and a closing tag.

    mode: "tags" tells all states apart; "vlmevalkit" is what VLMEvalKit does under SPLIT_THINK (an unclosed thought is
    scored whole); "off" takes the text as it is.
    """

    mode: Literal["tags", "vlmevalkit", "off"] = "tags"
    tags: tuple[tuple[str, str], ...] = (COMPATIBLE_TAGS,)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"mode": self.mode, "tags": [list(pair) for pair in self.tags]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; the defaults for what is absent."""
        defaults = cls()
        tags = tuple((opening, closing) for opening, closing in values.get("tags", defaults.tags))
        return cls(mode=values.get("mode", defaults.mode), tags=tags)

    def split(self, text: str, reasoning: str | None = None) -> Split:
        """`reasoning`: the server's own, which wins over any tag."""
        if reasoning is not None:
            return Split(text.strip(), reasoning.strip(), ThinkingState.SERVER)
        match self.mode:
            case "off":
                return Split(text.strip(), "", ThinkingState.NONE)
            case "vlmevalkit":
                return _split_as_vlmevalkit(text)
            case "tags":
                return _split_at_tags(text, self.tags)


def split_think_of_environment() -> bool:
    """Whether SPLIT_THINK is set, as VLMEvalKit reads it: any value that is not empty counts, "0" too."""
    return bool(os.environ.get("SPLIT_THINK"))


def _split_at_tags(text: str, tags: tuple[tuple[str, str], ...]) -> Split:
    used = [pair for pair in tags if pair[0] in text or pair[1] in text]
    if not used:
        return Split(text.strip(), "", ThinkingState.NONE)
    opening, closing = min(used, key=lambda pair: min(p for tag in pair if (p := text.find(tag)) >= 0))
    thoughts, _, answer = text.rpartition(closing)
    if opening in answer:  # also where nothing is closed at all: then `answer` is the whole text
        reasoning = (thoughts + answer).replace(opening, "").replace(closing, "")
        return Split("", reasoning.strip(), ThinkingState.UNCLOSED)
    if closing in thoughts:
        reasoning = thoughts.replace(opening, "").replace(closing, "")
        return Split(answer.strip(), reasoning.strip(), ThinkingState.MULTIPLE)
    before, has_opening, thought = thoughts.partition(opening)
    if has_opening:
        return Split(answer.strip(), thought.strip(), ThinkingState.CLOSED)
    return Split(answer.strip(), before.strip(), ThinkingState.CLOSE_ONLY)


def _split_as_vlmevalkit(text: str) -> Split:
    opening, closing = COMPATIBLE_TAGS
    thoughts, has_closing, answer = text.rpartition(closing)
    if not has_closing:
        return Split(text.strip(), "", ThinkingState.NONE)
    if closing not in thoughts and opening in thoughts:
        return Split(answer.strip(), thoughts.partition(opening)[2].strip(), ThinkingState.CLOSED)
    state = ThinkingState.MULTIPLE if closing in thoughts else ThinkingState.CLOSE_ONLY
    return Split(answer.strip(), thoughts.strip(), state)

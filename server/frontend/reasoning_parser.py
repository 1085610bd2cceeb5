"""Tells reasoning from answer in a model's text: `<think>...</think>` and the like."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from server.errors import ConfigurationError
from server.frontend.message_deltas import ContentDelta, MessageDelta, ReasoningDelta, StepwiseParser, held_back


class ReasoningTags(NamedTuple):
    """What the model writes around its reasoning."""

    opening: str
    closing: str

    @classmethod
    def from_text(cls, text: str) -> ReasoningTags:
        """Two tags with a space between. Raises ConfigurationError."""
        tags = text.split()
        if len(tags) != 2 or tags[0] == tags[1]:
            raise ConfigurationError(f"--reasoning-tags takes two tags, such as '<think> </think>', not {text!r}")
        return cls(*tags)


class ReasoningStart(Enum):
    """What the first character of an answer belongs to.

    REASONING: the prompt has opened it. ANSWER: the prompt has closed it. EITHER_REASONING, EITHER_ANSWER: the opening
    tag decides, and if it does not come, it is taken for one of the two.
    """

    REASONING = 0
    ANSWER = 1
    EITHER_REASONING = 2
    EITHER_ANSWER = 3


def reasoning_start(prompt_end: str, tags: ReasoningTags, *, always_reasons: bool) -> ReasoningStart:
    """From the prompt's last characters. always_reasons: the model does, even where it leaves out the opening tag."""
    end = prompt_end.rstrip()
    if end.endswith(tags.opening):
        return ReasoningStart.REASONING
    if end.endswith(tags.closing):
        return ReasoningStart.ANSWER
    return ReasoningStart.EITHER_REASONING if always_reasons else ReasoningStart.EITHER_ANSWER


class _State(Enum):
    BEGINNING = 0
    REASONING = 1
    AFTER_REASONING = 2
    ANSWER_WITHOUT_REASONING = 3
    ANSWER = 4


class ReasoningParser(StepwiseParser):
    """Reasoning that is never closed is reasoning to its end; a closing tag in an answer without reasoning is dropped.

    Whitespace around the reasoning belongs to neither.
    """

    def __init__(self, tags: ReasoningTags, start: ReasoningStart) -> None:
        super().__init__()
        self._tags = tags
        self._without_tag = (
            _State.REASONING if start is ReasoningStart.EITHER_REASONING else _State.ANSWER_WITHOUT_REASONING
        )
        self._state = {ReasoningStart.REASONING: _State.REASONING, ReasoningStart.ANSWER: _State.ANSWER}.get(
            start, _State.BEGINNING
        )
        self._has_reasoned = False

    def flush(self) -> list[MessageDelta]:
        """The rest, at the end of the answer."""
        text, self._text = self._text, ""
        if self._state is _State.BEGINNING:
            self._state = self._without_tag
        if self._state is _State.REASONING:
            text = text.rstrip() if self._has_reasoned else text.strip()
            return [ReasoningDelta(text)] if text else []
        if self._state is _State.AFTER_REASONING:
            text = text.lstrip()
        return [ContentDelta(text)] if text else []

    def _advance(self, deltas: list[MessageDelta]) -> bool:
        """Deal with what is certain; whether the state changed, so that more may be."""
        match self._state:
            case _State.BEGINNING:
                return self._begin()
            case _State.REASONING:
                return self._reason(deltas)
            case _State.AFTER_REASONING:
                self._text = self._text.lstrip()
                if self._text:
                    self._state = _State.ANSWER
                return bool(self._text)
            case _State.ANSWER_WITHOUT_REASONING:
                return self._answer_without_reasoning(deltas)
            case _State.ANSWER:
                if self._text:
                    deltas.append(ContentDelta(self._text))
                self._text = ""
                return False

    def _begin(self) -> bool:
        start = self._text.lstrip()
        opening = self._tags.opening
        if start.startswith(opening):
            self._state, self._text = _State.REASONING, start[len(opening) :]
        elif opening.startswith(start):
            return False
        else:
            self._state = self._without_tag
        return True

    def _reason(self, deltas: list[MessageDelta]) -> bool:
        if not self._has_reasoned:  # a prompt or a model may open it where it is open already
            start = self._text.lstrip()
            if start and start != self._tags.opening and self._tags.opening.startswith(start):
                return False
            self._text = start.removeprefix(self._tags.opening).lstrip()
        before, tag, after = self._text.partition(self._tags.closing)
        if tag:
            shown, self._text = before.rstrip(), after
            self._state = _State.AFTER_REASONING
        else:
            sure = before[: len(before) - held_back(before, (self._tags.closing,))]
            shown = sure.rstrip()
            self._text = before[len(shown) :]
        if shown:
            self._has_reasoned = True
            deltas.append(ReasoningDelta(shown))
        return bool(tag)

    def _answer_without_reasoning(self, deltas: list[MessageDelta]) -> bool:
        before, tag, after = self._text.partition(self._tags.closing)
        if tag:
            shown, self._text = before, after
            self._state = _State.ANSWER
        else:
            shown = before[: len(before) - held_back(before, (self._tags.closing,))]
            self._text = before[len(shown) :]
        if shown:
            deltas.append(ContentDelta(shown))
        return bool(tag)

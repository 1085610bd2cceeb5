"""How the text of a chat answer is to be read: reasoning first, then content and calls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from server.frontend.message_deltas import (
    ContentDelta,
    MessageDelta,
    MessageParser,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from server.frontend.reasoning_parser import ReasoningParser, ReasoningStart, ReasoningTags
from server.frontend.tool_formats import ToolFormat


@dataclass(frozen=True)
class AnswerFormat:
    """reasoning: None where the model's text is not searched for any. tools: None where it is not searched for calls.

    include_reasoning: False drops it from the reply. one_call: calls after the first are dropped.
    """

    reasoning: tuple[ReasoningTags, ReasoningStart] | None = None
    include_reasoning: bool = True
    tools: ToolFormat | None = None
    function_names: frozenset[str] = frozenset()
    one_call: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""
        return self.reasoning is None and self.tools is None

    @property
    def tags(self) -> Collection[str]:
        """What must be seen in the text even where it is a special token, which is left out of texts otherwise."""
        return (*(self.reasoning[0] if self.reasoning else ()), *(self.tools.tags if self.tools else ()))

    def reader(self) -> AnswerReader:
        """A fresh state for one answer."""
        return AnswerReader(self)


class AnswerReader:
    """One answer, read piece by piece; a `MessageParser`."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._format = answer_format
        reasoning, tools = answer_format.reasoning, answer_format.tools
        self._reasoning = ReasoningParser(*reasoning) if reasoning else None
        self._calls: MessageParser | None = tools.make_parser(answer_format.function_names) if tools else None
        self.num_calls = 0

    def push(self, text: str) -> list[MessageDelta]:
        """What this text makes certain."""
        return self._kept(self._read_calls(self._reasoning.push(text) if self._reasoning else [ContentDelta(text)]))

    def flush(self) -> list[MessageDelta]:
        """The rest, at the end of the answer."""
        deltas = self._read_calls(self._reasoning.flush() if self._reasoning else [])
        return self._kept(deltas + (self._calls.flush() if self._calls else []))

    def _read_calls(self, deltas: list[MessageDelta]) -> list[MessageDelta]:
        if self._calls is None:
            return deltas
        read: list[MessageDelta] = []
        for delta in deltas:
            read += self._calls.push(delta.text) if isinstance(delta, ContentDelta) else [delta]
        return read

    def _kept(self, deltas: list[MessageDelta]) -> list[MessageDelta]:
        kept = [delta for delta in deltas if self._keeps(delta)]
        self.num_calls += sum(isinstance(delta, ToolCallStart) for delta in kept)
        return kept

    def _keeps(self, delta: MessageDelta) -> bool:
        if isinstance(delta, ReasoningDelta):
            return self._format.include_reasoning
        if isinstance(delta, ToolCallStart | ToolArgumentsDelta):
            return delta.call_index == 0 or not self._format.one_call
        return True

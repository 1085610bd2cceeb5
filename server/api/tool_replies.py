"""Messages and deltas of chat replies whose text has parts: reasoning, content and calls."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from server.api.stream_progress import Part
from server.frontend.answer_format import AnswerFormat, AnswerReader
from server.frontend.message_deltas import (
    ContentDelta,
    MessageDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)


class AnswerParts:
    """The readers of a request's samples."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._format = answer_format
        self._readers: dict[int, AnswerReader] = {}

    def read(self, part: Part) -> dict[str, Any]:
        """The fields of a delta that this part of a sample's text makes certain; none for nothing."""
        reader = self._reader(part)
        deltas = reader.push(part.text)
        if part.sample.is_done:
            deltas += reader.flush()
        return self._fields(deltas)

    def message(self, part: Part) -> dict[str, Any]:
        """The fields of a whole message. Beside calls, content is null where there is none."""
        fields = self.read(part)
        for call in fields.get("tool_calls", []):
            del call["index"]
        content = fields.pop("content", None if "tool_calls" in fields else "")
        return {"content": content, **fields}

    def has_calls(self, part: Part) -> bool:
        """Whether the sample has called anything so far."""
        return self._reader(part).num_calls > 0

    def _reader(self, part: Part) -> AnswerReader:
        index = part.sample.place.sample_index
        if index not in self._readers:
            self._readers[index] = self._format.reader()
        return self._readers[index]

    def _fields(self, deltas: Iterable[MessageDelta]) -> dict[str, Any]:
        texts: dict[str, list[str]] = {}
        calls: dict[int, dict[str, Any]] = {}
        arguments: dict[int, list[str]] = {}  # in pieces, of which a long answer has one for each character
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    texts.setdefault("content", []).append(text)
                case ReasoningDelta(text):
                    texts.setdefault("reasoning_content", []).append(text)
                case ToolCallStart(index, name):
                    calls[index] = {
                        "index": index,
                        "id": self._new_id(),
                        "type": "function",
                        "function": {"name": name},
                    }
                case ToolArgumentsDelta(index, text):
                    calls.setdefault(index, {"index": index, "function": {}})
                    arguments.setdefault(index, []).append(text)
        for index, call in calls.items():
            call["function"]["arguments"] = "".join(arguments.get(index, ()))
        fields: dict[str, Any] = {name: "".join(pieces) for name, pieces in texts.items()}
        return fields | ({"tool_calls": list(calls.values())} if calls else {})

    def _new_id(self) -> str:
        length = self._format.tools.call_id_length if self._format.tools else 0
        return uuid.uuid4().hex[:length] if length else f"call_{uuid.uuid4().hex}"

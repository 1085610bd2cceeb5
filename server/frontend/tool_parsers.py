"""Finds function calls in a model's text, in the formats that models were trained to write.

The formats, by the names that vLLM's `--tool-call-parser` made known:
hermes: `<tool_call>{"name", "arguments"}</tool_call>`, each call so (Hermes 2 Pro, Qwen 2.5 and 3).
llama3_json: the answer is `{"name", "parameters"}`, several with `;` between (Llama 3.1 and 3.2).
mistral: `[TOOL_CALLS][{"name", "arguments"}, ...]`, or in newer models `[TOOL_CALLS]name[ARGS]{...}` for each call.
pythonic: the answer is `[name(key=value), ...]` (Llama 3.2 and 4); see `pythonic_parser`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from server.frontend.message_deltas import (
    ContentAroundCalls,
    MessageDelta,
    StepwiseParser,
    ToolArgumentsDelta,
    ToolCallStart,
    held_back,
)
from server.frontend.tool_call_scanner import CallScanner, JsonValueScanner

_SPACE = " \t\r\n"
_PYTHON_TAG = "<|python_tag|>"


class HermesParser(StepwiseParser):
    """Calls between tags, anywhere in the text. What stands between tags and is no call is content, tags included."""

    OPENING, CLOSING = "<tool_call>", "</tool_call>"

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._content = ContentAroundCalls()
        self._scanner: CallScanner | None = None
        self._is_after_call = False
        self._num_calls = 0

    def flush(self) -> list[MessageDelta]:
        """The rest, at the end of the answer."""
        deltas: list[MessageDelta] = []
        if self._scanner is not None and not self._scanner.has_started:
            deltas += self._content.push(self.OPENING + self._scanner.text)
        elif self._scanner is None and not self._is_after_call:
            deltas += self._content.push(self._text)
        return deltas + self._content.flush()

    def _advance(self, deltas: list[MessageDelta]) -> bool:
        """Deal with what is certain; whether the state changed."""
        if self._scanner is not None:
            return self._scan(self._scanner, deltas)
        if self._is_after_call:
            return self._leave_call()
        before, tag, after = self._text.partition(self.OPENING)
        sure = before if tag else before[: len(before) - held_back(before, (self.OPENING,))]
        deltas += self._content.push(sure)
        self._text = after if tag else before[len(sure) :]
        if tag:
            self._scanner = CallScanner(self._num_calls)
        return bool(tag)

    def _scan(self, scanner: CallScanner, deltas: list[MessageDelta]) -> bool:
        for position, character in enumerate(self._text, start=1):
            had_started = scanner.has_started
            deltas += scanner.push(character)
            if scanner.has_started and not had_started:
                self._content.begin_call()
                self._num_calls += 1
            if scanner.is_over:
                self._text = self._text[position:]
                self._scanner = None
                self._is_after_call = scanner.has_started
                if not scanner.has_started:
                    deltas += self._content.push(self.OPENING + scanner.text)
                return True
        self._text = ""
        return False

    def _leave_call(self) -> bool:
        """What follows the object, up to the closing tag, is nothing; some models leave the tag out."""
        ends = [(self._text.find(tag), tag) for tag in (self.CLOSING, self.OPENING) if tag in self._text]
        if not ends:
            self._text = self._text[len(self._text) - held_back(self._text, (self.CLOSING, self.OPENING)) :]
            return False
        position, tag = min(ends)
        self._text = self._text[position + (len(tag) if tag == self.CLOSING else 0) :]
        self._is_after_call = False
        return True


class _Place(Enum):
    """Where a parser of calls without closing tags is."""

    START = 0
    BEFORE_CALL = 1
    CALL = 2
    AFTER_CALL = 3
    CONTENT = 4


class Llama3JsonParser:
    """The whole answer is calls of known functions, or it is content."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._content = ContentAroundCalls()
        self._place = _Place.START
        self._held = ""  # at the start: what may still turn out to be content
        self._scanner = CallScanner(0, names)
        self._num_calls = 0

    def push(self, text: str) -> list[MessageDelta]:
        """What this text makes certain."""
        deltas: list[MessageDelta] = []
        for position, character in enumerate(text):
            if self._place is _Place.CONTENT:
                return deltas + self._content.push(text[position:])
            deltas += self._push(character)
        return deltas

    def flush(self) -> list[MessageDelta]:
        """The rest, at the end of the answer."""
        unread = self._held
        if self._place is _Place.CALL and not self._scanner.has_started:
            unread += self._scanner.text
        return self._content.push(unread) + self._content.flush()

    def _push(self, character: str) -> list[MessageDelta]:
        if self._place is _Place.CALL:
            return self._scan(character)
        seen = self._held + character
        if character == "{" and seen[:-1].strip() in ("", _PYTHON_TAG, ";", ","):
            self._place = _Place.CALL
            self._scanner = CallScanner(self._num_calls, self._names)
            return self._scan(character)
        separators = (_PYTHON_TAG,) if self._place is _Place.START else (";", ",")
        if not any(separator.startswith(seen.strip()) for separator in separators):
            self._place, self._held = _Place.CONTENT, ""
            return self._content.push(seen)
        self._held = seen
        return []

    def _scan(self, character: str) -> list[MessageDelta]:
        had_started = self._scanner.has_started
        deltas = self._scanner.push(character)
        if self._scanner.has_started and not had_started:
            self._held = ""
            self._content.begin_call()
            self._num_calls += 1
        if self._scanner.is_done:
            self._place = _Place.AFTER_CALL
        elif self._scanner.is_broken:
            self._place = _Place.CONTENT
            if not self._scanner.has_started:
                deltas += self._content.push(self._held + self._scanner.text)
            self._held = ""
        return deltas


class MistralParser(StepwiseParser):
    """Content, then calls behind a marker. marker: empty where the answer is a JSON list of calls and nothing else."""

    MARKER = "[TOOL_CALLS]"

    def __init__(self, names: Collection[str], marker: str = MARKER) -> None:
        super().__init__()
        self._content = ContentAroundCalls()
        self._marker = marker
        self._place = _Place.START if marker else _Place.BEFORE_CALL
        self._in_list = False
        self._name: list[str] = []  # its characters
        self._scanner: CallScanner | JsonValueScanner = CallScanner(0)
        self._num_calls = 0

    def flush(self) -> list[MessageDelta]:
        """The rest, at the end of the answer."""
        unread = self._text
        if self._place is _Place.BEFORE_CALL and not self._in_list and not self._num_calls:
            unread = self._marker + "".join(self._name)
        elif isinstance(self._scanner, CallScanner) and self._place is _Place.CALL and not self._scanner.has_started:
            unread = self._scanner.text
        return self._content.push(unread) + self._content.flush()

    def _advance(self, deltas: list[MessageDelta]) -> bool:
        """Deal with what is certain; whether there is more to be dealt with."""
        if self._needs_marker():
            deltas += self._look_for_marker()
            return not self._needs_marker()
        for position, character in enumerate(self._text, start=1):
            deltas += self._push(character)
            if self._needs_marker():
                self._text = self._text[position:]
                return True
        self._text = ""
        return False

    def _needs_marker(self) -> bool:
        return self._place in (_Place.START, _Place.AFTER_CALL)

    def _look_for_marker(self) -> list[MessageDelta]:
        if not self._marker:
            self._text = ""
            return []
        before, tag, after = self._text.partition(self._marker)
        sure = before if tag else before[: len(before) - held_back(before, (self._marker,))]
        self._text = after if tag else before[len(sure) :]
        if tag:
            self._place, self._name, self._in_list = _Place.BEFORE_CALL, [], False
        return self._content.push(sure)

    def _push(self, character: str) -> list[MessageDelta]:
        if self._place is _Place.CALL:
            return self._scan(character)
        if self._in_list:
            return self._between_calls(character)
        if character == "[" and all(map(str.isspace, self._name)):
            self._in_list = True
            return []
        if character != "{":
            self._name.append(character)
            return []
        # `name[CALL_ID]...[ARGS]{`: what is in brackets are control tokens
        name = "".join(self._name).split("[", 1)[0].strip()
        self._place, self._scanner = _Place.CALL, JsonValueScanner()
        self._content.begin_call()
        self._num_calls += 1
        return [ToolCallStart(self._num_calls - 1, name), *self._scan(character)]

    def _between_calls(self, character: str) -> list[MessageDelta]:
        if character == "{":
            self._place, self._scanner = _Place.CALL, CallScanner(self._num_calls)
            return self._scan(character)
        if character == "]":
            self._place = _Place.AFTER_CALL
        return []

    def _scan(self, character: str) -> list[MessageDelta]:
        scanner = self._scanner
        if isinstance(scanner, JsonValueScanner):
            scanner.push(character)
            if scanner.is_complete:
                self._place = _Place.AFTER_CALL
            return [ToolArgumentsDelta(self._num_calls - 1, character)]
        had_started = scanner.has_started
        deltas = scanner.push(character)
        if scanner.has_started and not had_started:
            self._content.begin_call()
            self._num_calls += 1
        if scanner.is_over:
            self._place = _Place.BEFORE_CALL if scanner.is_done else _Place.AFTER_CALL
            if not scanner.has_started:
                deltas += self._content.push(scanner.text)
        return deltas


class CallListParser(MistralParser):
    """A JSON list of calls, as a grammar that is no model's own format has it."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names, marker="")

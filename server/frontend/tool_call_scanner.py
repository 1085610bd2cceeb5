"""One function call as a JSON object, `{"name": ..., "arguments": {...}}`, read character by character.

What is certain is passed on at once: the arguments of a call stream to the client while the model writes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum

from server.frontend.message_deltas import MessageDelta, ToolArgumentsDelta, ToolCallStart

_ARGUMENT_KEYS = ("arguments", "parameters")
_SPACE = " \t\r\n"


class JsonValueScanner:
    """Finds the end of one JSON value. It follows strings and brackets; it does not validate.

    first: the value's first character, none before it has begun.
    """

    def __init__(self) -> None:
        self.first = ""
        self.is_complete = False
        self._characters: list[str] = []  # joined once: adding to a string copies it every time
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    @property
    def text(self) -> str:
        """All that belongs to the value so far."""
        return "".join(self._characters)

    def push(self, character: str) -> bool:
        """Whether the character belongs to the value; a number or a word ends before the first that does not."""
        if not self._in_string and self._depth == 0 and self.first and character in _SPACE + ",:]}":
            self.is_complete = True
            return False
        self.first = self.first or character
        self._characters.append(character)
        if self._in_string:
            self._push_in_string(character)
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_complete = self._depth <= 0
        return True

    def _push_in_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
            self.is_complete = self._depth == 0


class _Expects(Enum):
    OBJECT = 0
    KEY = 1
    COLON = 2
    VALUE = 3
    COMMA = 4


class CallScanner:
    """One call. names: functions that it may be of; None for any.

    text: all that was pushed. has_started: the call is told and cannot be taken back. is_done: the object is complete.
    is_broken: this is no call; if it has started, its arguments stay as they are.
    """

    def __init__(self, index: int, names: Collection[str] | None = None) -> None:
        self._index = index
        self._names = names
        self._characters: list[str] = []
        self.has_started = False
        self.is_done = False
        self.is_broken = False
        self._expects = _Expects.OBJECT
        self._key = ""
        self._value = JsonValueScanner()
        self._has_arguments = False
        self._unsent: list[str] = []  # arguments, while the name is not known

    @property
    def text(self) -> str:
        return "".join(self._characters)

    @property
    def is_over(self) -> bool:
        return self.is_done or self.is_broken

    def push(self, character: str) -> list[MessageDelta]:
        """The next character of a call that is not over."""
        self._characters.append(character)
        if self._expects is _Expects.VALUE and (self._value.first or character not in _SPACE):
            return self._push_in_value(character)
        if character in _SPACE and not self._value.first:
            return []
        match self._expects, character:
            case _Expects.OBJECT, "{":
                self._expects = _Expects.KEY
            case _Expects.COLON, ":":
                self._expect_value(_Expects.VALUE)
            case _Expects.COMMA, ",":
                self._expect_value(_Expects.KEY)
            case ((_Expects.KEY | _Expects.COMMA), "}") if not self._value.first:
                return self._finish()
            case _Expects.KEY, _ if self._value.first or character == '"':
                self._push_in_key(character)
            case _:
                self.is_broken = True
        return []

    def _expect_value(self, expects: _Expects) -> None:
        self._expects = expects
        self._value = JsonValueScanner()

    def _push_in_key(self, character: str) -> None:
        self._value.push(character)
        if self._value.is_complete:
            key = _loads(self._value.text)
            self.is_broken = not isinstance(key, str)
            self._key = str(key)
            self._expect_value(_Expects.COLON)

    def _push_in_value(self, character: str) -> list[MessageDelta]:
        belongs = self._value.push(character)
        deltas: list[MessageDelta] = []
        is_arguments = self._key in _ARGUMENT_KEYS and not self._has_arguments
        if is_arguments and belongs and self._value.first == "{":
            deltas += self._send(character)
        if self._value.is_complete:
            deltas += self._end_value(is_arguments)
            if not belongs and not self.is_broken:
                self._characters.pop()  # pushed again
                deltas += self.push(character)
        return deltas

    def _end_value(self, is_arguments: bool) -> list[MessageDelta]:
        text = self._value.text
        self._expect_value(_Expects.COMMA)
        if is_arguments:
            self._has_arguments = True
            return [] if text[0] == "{" else self._send(_as_object(text))
        if self._key == "name" and not self.has_started:
            return self._take_name(_loads(text))
        return []

    def _take_name(self, name: object) -> list[MessageDelta]:
        if not isinstance(name, str) or not name or (self._names is not None and name not in self._names):
            self.is_broken = True
            return []
        self.has_started = True
        return [ToolCallStart(self._index, name), *self._send("".join(self._unsent))]

    def _send(self, arguments: str) -> list[MessageDelta]:
        if not self.has_started:
            self._unsent.append(arguments)
            return []
        return [ToolArgumentsDelta(self._index, arguments)] if arguments else []

    def _finish(self) -> list[MessageDelta]:
        if not self.has_started:
            self.is_broken = True
            return []
        self.is_done = True
        return [] if self._has_arguments else self._send("{}")


def _as_object(text: str) -> str:
    """Arguments that are not an object: none at all, or an object written as a string."""
    value = _loads(text)
    if value is None:
        return "{}" if text == "null" else text
    return value if isinstance(value, str) else text


def _loads(text: str) -> object:
    """None for what is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

"""Function calls written as a Python list, `[weather(city="Oslo"), time()]` (Llama 3.2 and 4)."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection
from typing import Any

from server.frontend.message_deltas import (
    ContentAroundCalls,
    MessageDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)

_MAX_CHARACTERS = 65536
_JSON_WORDS = {"true": True, "false": False, "null": None}


class PythonicParser:
    """The whole answer is a list of calls of known functions, or it is content. The calls are told when it closes."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._content = ContentAroundCalls()
        self._list = ""
        self._is_content = False
        self._depth = 0
        self._quote = ""
        self._is_escaped = False

    def push(self, text: str) -> list[MessageDelta]:
        """What this text makes certain."""
        for position, character in enumerate(text, start=1):
            if self._is_content:
                return self._content.push(text[position - 1 :])
            self._list += character
            if self._is_certain(character):
                return self._settle() + self._content.push(text[position:])
        return []

    def flush(self) -> list[MessageDelta]:
        """The rest, at the end of the answer."""
        unread = "" if self._is_content else self._list
        return self._content.push(unread) + self._content.flush()

    def _is_certain(self, character: str) -> bool:
        """Follow brackets and strings; whether the list is closed, or there is none."""
        if self._quote:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == self._quote:
                self._quote = ""
        elif self._depth and character in "'\"":
            self._quote = character
        elif character in "[({":
            self._depth += 1
        elif character in "])}":
            self._depth -= 1
        begins = self._list.lstrip()[:1]
        return begins not in ("", "[") or (begins == "[" and self._depth <= 0) or len(self._list) > _MAX_CHARACTERS

    def _settle(self) -> list[MessageDelta]:
        self._is_content = True
        calls = _calls_of(self._list.strip(), self._names)
        if calls is None:
            return self._content.push(self._list)
        self._content.begin_call()
        deltas: list[MessageDelta] = []
        for index, (name, arguments) in enumerate(calls):
            deltas += [ToolCallStart(index, name), ToolArgumentsDelta(index, json.dumps(arguments, ensure_ascii=False))]
        return deltas


def _calls_of(text: str, names: Collection[str]) -> list[tuple[str, dict[str, Any]]] | None:
    """Names and arguments; None when the text is anything else. Nothing is evaluated but literals."""
    try:
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_call_of(node, names) for node in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what the parser raises for text that is no Python
        return None


def _call_of(node: ast.expr, names: Collection[str]) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func)
    if name not in names:
        raise ValueError("not a known function")
    arguments = {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    if len(arguments) != len(node.keywords):
        raise ValueError("not every argument has a name of its own")
    json.dumps(arguments, allow_nan=False)  # sets, bytes and complex numbers are no JSON
    return name, arguments


def _value(node: ast.expr) -> Any:
    """A literal; JSON's own words count, too, also within lists and dictionaries."""
    for name in ast.walk(node):
        if isinstance(name, ast.Name) and name.id not in _JSON_WORDS:
            raise ValueError("not a literal")
    return ast.literal_eval(_JsonWords().visit(node))


class _JsonWords(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(_JSON_WORDS[node.id]), node)

"""The formats of function calls: who reads each, and the grammar that makes a model write it.

Such a grammar is Lark in llguidance's dialect, where `%json {...}` stands for all texts that a JSON Schema allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from server.frontend.grammar_fields import bounded_schema
from server.frontend.message_deltas import MessageParser
from server.frontend.pythonic_parser import PythonicParser
from server.frontend.tool_parsers import CallListParser, HermesParser, Llama3JsonParser, MistralParser


class Function(NamedTuple):
    """What a model may call. parameters: JSON Schema of its arguments. is_strict: they must match it."""

    name: str
    parameters: Mapping[str, Any]
    is_strict: bool = False


@dataclass(frozen=True)
class ToolFormat:
    """make_parser: from the functions' names. tags: what the model writes around calls, as tokens of its own perhaps.

    A call is written between `opening` and `closing`, several with `separator` between, all between `begin` and `end`;
    arguments_key: the name of the arguments in a call's object. call_id_length: of the ids that the model was trained
    with, 0 for any. has_grammar: whether calls are objects written so. trigger: the tag behind which a call follows for
    certain, empty where there is none.
    """

    make_parser: Callable[[Collection[str]], MessageParser]
    tags: tuple[str, ...] = ()
    begin: str = "["
    opening: str = ""
    closing: str = ""
    separator: str = ", "
    end: str = "]"
    arguments_key: str = "arguments"
    call_id_length: int = 0
    has_grammar: bool = True
    trigger: str = ""

    def grammar(self, functions: Sequence[Function], *, several: bool, tag_ids: Mapping[str, int]) -> str:
        """Calls of these functions, at least one, and nothing else.

        tag_ids: the tags that are tokens of their own; a grammar names such a token by its id.
        """
        return "\n".join([f"start: {self._calls(self.begin, several, tag_ids)}", *self._call(functions, tag_ids)])

    def free_grammar(self, functions: Sequence[Function], *, several: bool, tag_ids: Mapping[str, int]) -> str:
        """Any text, in which each call is one of these functions; of a strict one with arguments that match."""
        assert self.trigger
        functions = [
            function if function.is_strict else function._replace(parameters=_OBJECT) for function in functions
        ]
        calls = self._calls(self.begin.removeprefix(self.trigger), self.begin != "" and several, tag_ids)
        triggers = ["trigger_text", "trigger_token"][: 1 + (self.trigger in tag_ids)]
        return "\n".join(
            [
                f"start: (({' | '.join(triggers)}) {calls}){'*' if several else '?'} TEXT",
                f"trigger_text[lazy]: TEXT {json.dumps(self.trigger)}",
                *([f"trigger_token: TEXT <[{tag_ids[self.trigger]}]>"] if self.trigger in tag_ids else []),
                "TEXT: /(?s:.*)/",
                *self._call(functions, tag_ids, without=self.trigger),
            ]
        )

    def _calls(self, begin: str, several: bool, tag_ids: Mapping[str, int]) -> str:
        more = f"({json.dumps(self.separator)} call)*" if several else ""
        return f"{_literal(begin, tag_ids)} call {more} {_literal(self.end, tag_ids)}"

    def _call(self, functions: Sequence[Function], tag_ids: Mapping[str, int], without: str = "") -> list[str]:
        """The rule `call` and those that it needs. without: what stands before the call already."""
        names = [f"call_{index}" for index in range(len(functions))]
        opening = self.opening.removeprefix(without) if without else self.opening
        lines = [f"call: {_literal(opening, tag_ids)} ({' | '.join(names)}) {_literal(self.closing, tag_ids)}"]
        for name, function in zip(names, functions, strict=True):
            before = f'{{"name": {json.dumps(function.name)}, "{self.arguments_key}": '
            lines += [f'{name}: {json.dumps(before)} {name}_arguments "}}"']
            lines += [f"{name}_arguments: %json {json.dumps(bounded_schema(function.parameters))}"]
        return lines


def _literal(text: str, tag_ids: Mapping[str, int]) -> str:
    """Text in a grammar. A tag may also come as a token of its own, which does not count as the text that it spells."""
    for tag, token_id in tag_ids.items():
        before, found, after = text.partition(tag)
        if found:
            either = f"(<[{token_id}]> | {json.dumps(tag)})"
            return f"{_literal(before, tag_ids)} {either} {_literal(after, tag_ids)}".strip()
    return json.dumps(text) if text else ""


_OBJECT = {"type": "object"}

CALL_LIST = ToolFormat(CallListParser)
"""No model's own: what is asked of a model whose format is not known, or has no grammar."""

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat(
        HermesParser,
        tags=(HermesParser.OPENING, HermesParser.CLOSING),
        begin="",
        opening=f"{HermesParser.OPENING}\n",
        closing=f"\n{HermesParser.CLOSING}",
        separator="\n",
        end="",
        trigger=HermesParser.OPENING,
    ),
    "llama3_json": ToolFormat(
        Llama3JsonParser,
        tags=("<|python_tag|>",),
        begin="",
        separator="; ",
        end="",
        arguments_key="parameters",
    ),
    "mistral": ToolFormat(
        MistralParser,
        tags=(MistralParser.MARKER,),
        begin=f"{MistralParser.MARKER}[",
        call_id_length=9,
        trigger=MistralParser.MARKER,
    ),
    "pythonic": ToolFormat(PythonicParser, has_grammar=False),
}
"""By the values of --tool-call-parser."""

"""Parsers of answers: each text gives its message, however it is cut into pieces."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from server.frontend.message_deltas import (
    ContentDelta,
    MessageDelta,
    MessageParser,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from server.frontend.pythonic_parser import PythonicParser
from server.frontend.reasoning_parser import ReasoningParser, ReasoningStart, ReasoningTags, reasoning_start
from server.frontend.tool_parsers import CallListParser, HermesParser, Llama3JsonParser, MistralParser

NAMES = {"f", "get_weather"}
TAGS = ReasoningTags("<think>", "</think>")


def message(deltas: list[MessageDelta]) -> dict[str, Any]:
    result: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                result["content"] += text
            case ReasoningDelta(text):
                result["reasoning"] += text
            case ToolCallStart(index, name):
                assert index == len(result["calls"])
                result["calls"].append([name, ""])
            case ToolArgumentsDelta(index, text):
                assert index == len(result["calls"]) - 1
                result["calls"][index][1] += text
    return result


def read(make: Callable[[], MessageParser], text: str) -> dict[str, Any]:
    """The message, after checking that every cut of the text in two, and many in more, gives the same."""
    parser = make()
    whole = message([*parser.push(text), *parser.flush()])
    rng = random.Random(0)
    cuts = [[cut] for cut in range(len(text) + 1)] + [list(range(len(text)))]
    cuts += [sorted(rng.sample(range(len(text)), 3)) for _ in range(20) if len(text) > 3]
    for cut in cuts:
        parser = make()
        deltas: list[MessageDelta] = []
        for begin, end in zip([0, *cut], [*cut, len(text)], strict=True):
            deltas += parser.push(text[begin:end])
        assert message([*deltas, *parser.flush()]) == whole, cut
    return whole


def calls(*pairs: tuple[str, str], content: str = "") -> dict[str, Any]:
    return {"content": content, "reasoning": "", "calls": [list(pair) for pair in pairs]}


HERMES = [
    ("just text  ", calls(content="just text  ")),
    ("a < b <tool", calls(content="a < b <tool")),
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', calls(("f", '{"a": 1}'))),
    (
        'Let me look.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>\n'
        '{"arguments": {"s": "}</tool_call>\\"{"}, "name": "get_weather"}</tool_call>\n',
        calls(("f", "{}"), ("get_weather", '{"s": "}</tool_call>\\"{"}'), content="Let me look."),
    ),
    (
        '<tool_call>{"name": "f"}</tool_call> and <tool_call>{"name": "f", "arguments": null}',
        calls(("f", "{}"), ("f", "{}"), content=" and"),
    ),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": [1]}"}</tool_call>', calls(("f", '{"a": [1]}'))),
    ('<tool_call>{"name": "f", "arguments": {"a": [1, {"b": ', calls(("f", '{"a": [1, {"b": '))),
    ("<tool_call>no JSON</tool_call>", calls(content="<tool_call>no JSON</tool_call>")),
    ('<tool_call>{"arguments": {}}</tool_call>', calls(content='<tool_call>{"arguments": {}}</tool_call>')),
    ('<tool_call>{"name": "f', calls(content='<tool_call>{"name": "f')),
    (
        '<tool_call>{"name": "f", "id": [1, "x"], "arguments": {"a": "é😀"}, "z": true} <tool_call>{"name": "g"}',
        calls(("f", '{"a": "é😀"}'), ("g", "{}")),
    ),
]
LLAMA = [
    ("It is warm. {} ", calls(content="It is warm. {} ")),
    ('{"name": "f", "parameters": {"a": 1.5}}', calls(("f", '{"a": 1.5}'))),
    (
        '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {"x": "y"}}',
        calls(("f", "{}"), ("get_weather", '{"x": "y"}')),
    ),
    ('{"name": "unknown", "parameters": {}}', calls(content='{"name": "unknown", "parameters": {}}')),
    ('{"answer": 42}', calls(content='{"answer": 42}')),
    ('{"name": "f", "parameters": {}} done', calls(("f", "{}"), content=" done")),
    ("<|python_tag|>print(1)", calls(content="<|python_tag|>print(1)")),
    ("<|pyt", calls(content="<|pyt")),
    ('{"name": 3', calls(content='{"name": 3')),
    ("", calls()),
]
MISTRAL = [
    ("plain [TOOL", calls(content="plain [TOOL")),
    (
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}}, {"name": "get_weather", "arguments": {}}]',
        calls(("f", '{"a": "]"}'), ("get_weather", "{}")),
    ),
    ('Look: [TOOL_CALLS]f[ARGS]{"a": {"b": 1}}', calls(("f", '{"a": {"b": 1}}'), content="Look:")),
    ('[TOOL_CALLS]f{"a": 1}[TOOL_CALLS]f[CALL_ID]x1[ARGS]{}', calls(("f", '{"a": 1}'), ("f", "{}"))),
    ("[TOOL_CALLS]nothing", calls(content="[TOOL_CALLS]nothing")),
]
PYTHONIC = [
    (
        '[f(a=1, b="x]"), get_weather(city=\'O"slo\')]',
        calls(("f", '{"a": 1, "b": "x]"}'), ("get_weather", '{"city": "O\\"slo"}')),
    ),
    (
        "[f(a=[true, null, {'k': None}], b=-1.5)] ok",
        calls(("f", '{"a": [true, null, {"k": null}], "b": -1.5}'), content=" ok"),
    ),
    ("[f()]", calls(("f", "{}"))),
    ("[1, 2] is a list", calls(content="[1, 2] is a list")),
    ("[f(1)]", calls(content="[f(1)]")),
    ("[exec(x=1)]", calls(content="[exec(x=1)]")),
    ("[f(a=__import__('os'))]", calls(content="[f(a=__import__('os'))]")),
    ("[f(a=1", calls(content="[f(a=1")),
    ("hello", calls(content="hello")),
]


@pytest.mark.parametrize(("text", "expected"), HERMES)
def test_hermes(text: str, expected: dict[str, Any]) -> None:
    assert read(lambda: HermesParser(NAMES), text) == expected


@pytest.mark.parametrize(("text", "expected"), LLAMA)
def test_llama3_json(text: str, expected: dict[str, Any]) -> None:
    assert read(lambda: Llama3JsonParser(NAMES), text) == expected


@pytest.mark.parametrize(("text", "expected"), MISTRAL)
def test_mistral(text: str, expected: dict[str, Any]) -> None:
    assert read(lambda: MistralParser(NAMES), text) == expected


@pytest.mark.parametrize(("text", "expected"), PYTHONIC)
def test_pythonic(text: str, expected: dict[str, Any]) -> None:
    assert read(lambda: PythonicParser(NAMES), text) == expected


def test_a_list_of_calls_without_a_marker() -> None:
    text = '[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {}}]'
    assert read(lambda: CallListParser(NAMES), text) == calls(("f", '{"a": 1}'), ("f", "{}"))


def test_arguments_are_passed_on_while_they_are_written() -> None:
    parser = HermesParser(NAMES)
    assert parser.push('<tool_call>{"name": "f", "arguments": {"a') == [
        ToolCallStart(0, "f"),
        *(ToolArgumentsDelta(0, character) for character in '{"a'),
    ]


@pytest.mark.parametrize("make", [HermesParser, Llama3JsonParser, MistralParser, CallListParser, PythonicParser])
def test_random_texts_do_not_depend_on_how_they_are_cut(make: Any) -> None:
    rng = random.Random(3)
    tags = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "f(", "a=1", ")", "null", "text"]
    parts = [*tags, '{"name": "f"', ', "arguments": {"a": "', '"}', *'{}[]"\\<;,: \n']
    for _ in range(60):
        read(lambda: make(NAMES), "".join(rng.choices(parts, k=rng.randrange(1, 12))))


@pytest.mark.parametrize("named_first", [True, False])
@pytest.mark.parametrize(
    ("make", "before", "after"),
    [(HermesParser, "<tool_call>", "</tool_call>"), (Llama3JsonParser, "", ""), (MistralParser, "[TOOL_CALLS][", "]")],
)
def test_a_very_long_call_in_one_piece(make: Any, before: str, after: str, named_first: bool) -> None:
    arguments = json.dumps({"text": "lazy dog " * 10_000})
    fields = ['"name": "f"', f'"arguments": {arguments}']
    parser = make(NAMES)
    start, *deltas = parser.push(f"{before}{{{', '.join(fields if named_first else reversed(fields))}}}{after}")
    assert start == ToolCallStart(0, "f")
    assert "".join(delta.text for delta in deltas if isinstance(delta, ToolArgumentsDelta)) == arguments
    assert parser.flush() == []


S = ReasoningStart
REASONING = [
    (S.EITHER_ANSWER, "<think>\nhm\n</think>\n\n4", "hm", "4"),
    (S.EITHER_ANSWER, " \n<think>hm</think>4 ", "hm", "4 "),
    (S.EITHER_ANSWER, "no thought < at all", "", "no thought < at all"),
    (S.EITHER_ANSWER, "never opened</think>4", "", "never opened4"),
    (S.EITHER_ANSWER, "<think>cut off \n", "cut off", ""),
    (S.EITHER_ANSWER, "<thi", "", "<thi"),
    (S.EITHER_REASONING, "hm, hm </think> 4", "hm, hm", "4"),
    (S.EITHER_REASONING, "never closed", "never closed", ""),
    (S.REASONING, "hm</th></think>4<think>", "hm</th>", "4<think>"),
    (S.REASONING, "<think>\nhm</think>4", "hm", "4"),
    (S.REASONING, "</think>4", "", "4"),
    (S.REASONING, "</think>  ", "", ""),
    (S.ANSWER, "4 </think>", "", "4 </think>"),
]


@pytest.mark.parametrize(("start", "text", "reasoning", "content"), REASONING)
def test_reasoning(start: ReasoningStart, text: str, reasoning: str, content: str) -> None:
    expected = {"content": content, "reasoning": reasoning, "calls": []}
    assert read(lambda: ReasoningParser(TAGS, start), text) == expected


@pytest.mark.parametrize("start", list(ReasoningStart))
def test_random_reasoning_does_not_depend_on_how_it_is_cut(start: ReasoningStart) -> None:
    rng = random.Random(4)
    parts = ["<think>", "</think>", "<", "</", "think>", " ", "\n", "word", "</think"]
    for _ in range(60):
        read(lambda: ReasoningParser(TAGS, start), "".join(rng.choices(parts, k=rng.randrange(1, 9))))


def test_the_prompt_says_where_an_answer_begins() -> None:
    assert reasoning_start("x<think>\n", TAGS, always_reasons=False) is S.REASONING
    assert reasoning_start("<think>\n\n</think>\n\n", TAGS, always_reasons=True) is S.ANSWER
    assert reasoning_start("assistant\n", TAGS, always_reasons=True) is S.EITHER_REASONING
    assert reasoning_start("assistant\n", TAGS, always_reasons=False) is S.EITHER_ANSWER


def test_the_arguments_of_calls_are_json() -> None:
    for cases in (HERMES, LLAMA, MISTRAL, PYTHONIC):
        for text, expected in cases:
            for _, arguments in expected["calls"]:
                if not text.endswith('{"b": '):
                    json.loads(arguments)

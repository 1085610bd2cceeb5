"""The grammar of each format allows what its parser reads, and nothing that it would not read as these calls."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from server.frontend.message_deltas import ToolCallStart
from server.frontend.tool_formats import CALL_LIST, TOOL_FORMATS, Function, ToolFormat

FUNCTIONS = [
    Function("look", {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"],
                      "additionalProperties": False, "$defs": {"n": {"type": "integer"}}}, is_strict=True),
    Function("wait", {"type": "object", "properties": {}}),
]  # fmt: skip
CALLS = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": %s}\n</tool_call>',
    "llama3_json": '{"name": "look", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "look", "arguments": %s}]',
    "list": '[{"name": "look", "arguments": %s}]',
}
TWO = {
    "hermes": CALLS["hermes"] % '{"x": 1}' + '\n<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>',
    "llama3_json": '{"name": "look", "parameters": {"x": 1}}; {"name": "wait", "parameters": {}}',
    "mistral": '[TOOL_CALLS][{"name": "look", "arguments": {"x": 1}}, {"name": "wait", "arguments": {}}]',
    "list": '[{"name": "look", "arguments": {"x": 1}}, {"name": "wait", "arguments": {}}]',
}


def format_of(name: str) -> ToolFormat:
    return CALL_LIST if name == "list" else TOOL_FORMATS[name]


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is one that the grammar allows."""
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize("name", list(CALLS))
def test_forced_calls(name: str) -> None:
    tool_format = format_of(name)
    several, one = (tool_format.grammar(FUNCTIONS, several=value, tag_ids={}) for value in (True, False))
    assert accepts(one, CALLS[name] % '{"x": 12}')
    assert accepts(several, TWO[name])
    assert not accepts(one, TWO[name])
    for wrong in (
        "",
        "text",
        CALLS[name] % '{"x": "a"}',
        CALLS[name] % "{}",
        CALLS[name].replace("look", "hear") % "{}",
    ):
        assert not accepts(several, wrong)
    parser = tool_format.make_parser({"look", "wait"})
    deltas = [*parser.push(TWO[name]), *parser.flush()]
    assert [delta.name for delta in deltas if isinstance(delta, ToolCallStart)] == ["look", "wait"]


@pytest.mark.parametrize("name", [name for name, tool_format in TOOL_FORMATS.items() if tool_format.trigger])
def test_free_text_with_strict_calls(name: str) -> None:
    tool_format = format_of(name)
    several, one = (tool_format.free_grammar(FUNCTIONS, several=value, tag_ids={}) for value in (True, False))
    for text in ("", "just text", "a < b <tool", CALLS[name] % '{"x": 1}', f"Well. {TWO[name]}"):
        assert accepts(several, text)
    assert accepts(several, (CALLS[name] % '{"x": 1}').replace("look", "wait"))
    assert not accepts(several, CALLS[name] % '{"x": "a"}')
    assert not accepts(several, CALLS[name].replace("look", "hear") % "{}")
    assert accepts(one, CALLS[name] % '{"x": 1}')


def test_tags_that_are_control_tokens_are_named_by_their_ids() -> None:
    grammar = TOOL_FORMATS["hermes"].grammar(FUNCTIONS, several=False, tag_ids={"<tool_call>": 7, "</tool_call>": 8})
    assert '(<[7]> | "<tool_call>") "\\n"' in grammar
    assert '"\\n" (<[8]> | "</tool_call>")' in grammar
    free = TOOL_FORMATS["mistral"].free_grammar(FUNCTIONS, several=True, tag_ids={"[TOOL_CALLS]": 9})
    assert "trigger_token: TEXT <[9]>" in free
    assert not LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(free), log_level=0).is_error()


def test_function_names_cannot_break_out_of_the_grammar() -> None:
    odd = [Function('a"b', {"type": "object"})]
    assert json.dumps(json.dumps('a"b'))[1:-1] in TOOL_FORMATS["hermes"].grammar(odd, several=False, tag_ids={})

"""From what clients call a structured output to one kind of grammar, with its size checked; rank 0 compiles it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.errors import RequestError
from server.frontend.field_checks import check_count, shown
from server.request import Grammar

MAX_GRAMMAR_CHARACTERS = 2**17
_MAX_CHOICES = 4096
# Between the tokens of a JSON text: enough for indentation, too little for a model to go on with for ever.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \t\r\n]{0,24}"}


def json_schema_grammar(schema: Any, field: str) -> Grammar:
    """schema: a JSON Schema, as an object or as the text of one. Raises RequestError."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{field} is not the text of a JSON Schema: {error}", field=field) from error
    if not isinstance(schema, dict):
        raise RequestError(f"{field} must be a JSON Schema, an object, but is {shown(schema)}", field=field)
    return _checked(Grammar(kind="json_schema", text=as_json(bounded_schema(schema), field), field=field))


def json_object_grammar(field: str) -> Grammar:
    """Any JSON object."""
    return json_schema_grammar({"type": "object"}, field)


def bounded_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with llguidance's options for the text: what a client sets there itself stays."""
    given = schema.get("x-guidance")
    return {**schema, "x-guidance": {**_JSON_OPTIONS, **given} if isinstance(given, dict) else _JSON_OPTIONS}


def regex_grammar(pattern: str, field: str) -> Grammar:
    """A regular expression that the whole text matches. Raises RequestError."""
    return _checked(Grammar(kind="regex", text=pattern, field=field))


def text_grammar(text: str, field: str) -> Grammar:
    """A grammar in Lark's or in GBNF's notation. Raises RequestError."""
    return _checked(Grammar(kind="grammar", text=text, field=field))


def choice_grammar(choices: Sequence[str], field: str) -> Grammar:
    """One of some texts. Raises RequestError."""
    check_count(field, len(choices), _MAX_CHOICES, "choices")
    if not choices or "" in choices:
        raise RequestError(f"{field} must have at least one choice, and none that is empty", field=field)
    return text_grammar(f"start: {' | '.join(map(json.dumps, choices))}", field)


def as_json(value: Any, field: str) -> str:
    """The text of a JSON value from a request. Raises RequestError."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise RequestError(f"{field} is nested too deeply", field=field) from error


def _checked(grammar: Grammar) -> Grammar:
    size = len(grammar.text)
    if not 1 <= size <= MAX_GRAMMAR_CHARACTERS:
        raise RequestError(
            f"{grammar.field} must have 1 to {MAX_GRAMMAR_CHARACTERS} characters, but has {size}", field=grammar.field
        )
    try:
        grammar.text.encode()
    except UnicodeEncodeError as error:  # JSON has a way to write it: "\ud800"
        raise RequestError(
            f"{grammar.field} is no text: half a surrogate pair stands at character {error.start}", field=grammar.field
        ) from error
    return grammar

"""Fields that bind an answer to a format: OpenAI's `response_format`, vLLM's newer and older names, and /generate's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import Field

from server.api.json_unions import Texts
from server.api.protocol import RequestBody, SamplingBody
from server.errors import RequestError
from server.frontend.grammar_fields import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
    text_grammar,
)
from server.request import Grammar


class JsonSchemaFormat(RequestBody):
    """name, description: the client's own. strict: the schema is kept to in either case."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestBody):
    """OpenAI's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(RequestBody):
    """vLLM's; exactly one of them."""

    json_: Any = Field(None, alias="json")
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    json_object: bool | None = None


class FormatFields(RequestBody):
    """What both endpoints under /v1 take; at most one of them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None

    def grammar(self) -> Grammar | None:
        """What the answer must match. Raises RequestError."""
        return _only_one([*self._of_response_format(), *self._of_structured_outputs(), *self._of_guided_fields()])

    def _of_response_format(self) -> Iterator[Grammar]:
        asked = self.response_format
        if asked is None or asked.type == "text":
            return
        if asked.type == "json_object":
            yield json_object_grammar("response_format")
        elif asked.json_schema is None or asked.json_schema.schema_ is None:
            raise RequestError(
                "response_format.json_schema.schema is missing, which the type json_schema needs",
                field="response_format.json_schema",
            )
        else:
            yield json_schema_grammar(asked.json_schema.schema_, "response_format.json_schema.schema")

    def _of_structured_outputs(self) -> Iterator[Grammar]:
        asked = self.structured_outputs
        if asked is None:
            return
        given = [
            *_given(json_schema_grammar, asked.json_, "structured_outputs.json"),
            *_given(regex_grammar, asked.regex, "structured_outputs.regex"),
            *_given(choice_grammar, asked.choice, "structured_outputs.choice"),
            *_given(text_grammar, asked.grammar, "structured_outputs.grammar"),
            *([json_object_grammar("structured_outputs.json_object")] if asked.json_object else []),
        ]
        if not given:
            raise RequestError(
                "structured_outputs must have one of json, regex, choice, grammar and json_object",
                field="structured_outputs",
            )
        yield from given

    def _of_guided_fields(self) -> Iterator[Grammar]:
        yield from _given(json_schema_grammar, self.guided_json, "guided_json")
        yield from _given(regex_grammar, self.guided_regex, "guided_regex")
        yield from _given(choice_grammar, self.guided_choice, "guided_choice")
        yield from _given(text_grammar, self.guided_grammar, "guided_grammar")


def sampling_grammar(params: SamplingBody, path: str) -> Grammar | None:
    """From /generate's sampling parameters, which stand at `path`. Raises RequestError."""
    return _only_one(
        [
            *_given(json_schema_grammar, params.json_schema, f"{path}.json_schema"),
            *_given(regex_grammar, params.regex, f"{path}.regex"),
            *_given(text_grammar, params.grammar, f"{path}.grammar"),
        ]
    )


def _given[Value](make: Callable[[Value, str], Grammar], value: Value | None, field: str) -> list[Grammar]:
    return [] if value is None else [make(value, field)]


def _only_one(grammars: list[Grammar]) -> Grammar | None:
    if len(grammars) > 1:
        raise RequestError(
            f"{grammars[0].field} and {grammars[1].field} both say what the answer must match; give one of them",
            field=grammars[1].field,
        )
    return grammars[0] if grammars else None

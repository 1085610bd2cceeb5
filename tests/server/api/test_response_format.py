"""Every name under which clients ask for a format reaches the engine as a grammar, or is refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
SCHEMA_TEXT = json.dumps(SCHEMA, ensure_ascii=False)

V1_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, '{"type": "object"}'),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        SCHEMA_TEXT,
    ),
    ({"structured_outputs": {"json": SCHEMA}}, SCHEMA_TEXT),
    ({"structured_outputs": {"json_object": True}}, '{"type": "object"}'),
    ({"structured_outputs": {"regex": "a+"}}, "a+"),
    ({"structured_outputs": {"choice": ["yes", 'n"o']}}, 'start: "yes" | "n\\"o"'),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, 'start: "a"'),
    ({"guided_json": SCHEMA_TEXT}, SCHEMA_TEXT),
    ({"guided_regex": "b*"}, "b*"),
    ({"guided_choice": ["a"]}, 'start: "a"'),
    ({"guided_grammar": 'root ::= "a"'}, 'root ::= "a"'),
]


def without_options(grammar: str) -> str:
    """A schema without the options that bound its whitespace."""
    if not grammar.startswith("{"):
        return grammar
    schema = json.loads(grammar)
    assert "whitespace_pattern" in schema.pop("x-guidance")
    return json.dumps(schema, ensure_ascii=False)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(("fields", "text"), V1_FIELDS)
def test_under_v1(client: httpx.Client, stub_server: Any, path: str, fields: dict[str, Any], text: str) -> None:
    seed = hash((path, text, str(fields))) % 10**9 + 10**6
    prompt = {"messages": HELLO} if "chat" in path else {"prompt": "hi"}
    reply = client.post(path, json={**prompt, "max_tokens": 1, "seed": seed, **fields})
    assert reply.status_code == 200, reply.text
    assert without_options(stub_server.wait_for_log(lambda entry: entry.get("seed") == seed)["grammar"]) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"json_schema": SCHEMA}, SCHEMA_TEXT),
        ({"json_schema": SCHEMA_TEXT}, SCHEMA_TEXT),
        ({"regex": "[ab]"}, "[ab]"),
        ({"grammar": 'root ::= "x"'}, 'root ::= "x"'),
    ],
)
def test_generate(client: httpx.Client, stub_server: Any, fields: dict[str, Any], text: str) -> None:
    seed = hash(str(fields)) % 10**9 + 10**6
    reply = client.post("/generate", json={"text": "hi", "sampling_params": {"seed": seed, **fields}})
    assert reply.status_code == 200, reply.text
    assert without_options(stub_server.wait_for_log(lambda entry: entry.get("seed") == seed)["grammar"]) == text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": [1]}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_regex": "a" * 200_000}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"guided_regex": "a", "min_tokens": 1}, "min_tokens"),
    ],
)
def test_refusals(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    reply = client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 2, **fields})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_generate_refuses_two_formats_by_their_path(client: httpx.Client) -> None:
    reply = client.post("/generate", json={"text": "hi", "sampling_params": {"regex": "a", "grammar": "b"}})
    assert reply.status_code == 400
    assert reply.json()["error"]["field"] == "sampling_params.grammar"


LONE = r'{"const": "\ud800"}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a", "sampling_params": {"json_schema": LONE}}),
        ("/generate", {"inputs": "a", "parameters": {"grammar": {"type": "json", "value": LONE}}}),
        ("/v1/completions", {"prompt": "a", "guided_json": LONE}),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": LONE}}),
    ],
)
def test_a_schema_that_is_no_text_harms_nobody(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 400, reply.text
    assert "half a surrogate pair" in reply.text
    assert client.post("/generate", json={"text": "a", "sampling_params": {"max_new_tokens": 1}}).status_code == 200

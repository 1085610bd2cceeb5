"""The whole server on two ranks with a random model: what was asked for in a format comes in it, by OpenAI's client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 999}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["size", "kind"],
    "additionalProperties": False,
}
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "feed", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "stop"}},
]


@pytest.fixture(scope="module")
def url(
    byte_level_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
    running_server: Callable[..., AbstractContextManager[str]],
) -> Iterator[str]:
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    flags = ["--threads", "1", "--tensor-model-parallel-size", "2", "--kv-cache-gb", "0.02"]
    flags += ["--tool-call-parser", "hermes", "--chat-template", str(template)]
    with running_server(byte_level_checkpoint, *flags) as url:
        yield url
        stats = httpx.get(f"{url}/server_info", timeout=60).json()["stats"]
        assert stats["num_free_blocks"] == stats["num_blocks"]


@pytest.fixture
def sdk(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def create(sdk: openai.OpenAI, **fields: Any) -> Any:
    return sdk.chat.completions.create(**{"model": "megatron", "messages": HELLO, "max_tokens": 400} | fields)


def test_a_json_schema_is_kept_to_by_every_choice_beside_other_requests(sdk: openai.OpenAI) -> None:
    schema_format = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
    with ThreadPoolExecutor(4) as pool:
        beside = [pool.submit(create, sdk, seed=seed, max_tokens=60) for seed in range(3)]
        reply = create(sdk, response_format=schema_format, n=4, seed=3, temperature=1.5)
        assert all(future.result().choices[0].finish_reason for future in beside)
    assert len({choice.message.content for choice in reply.choices}) > 1
    for choice in reply.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    stream = create(sdk, response_format=schema_format, seed=3, temperature=1.5, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == reply.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"guided_regex": "(a|"}, "unclosed group"),
        ({"guided_json": {"not": {}}}, "not"),
        # A chain of rules that overflows the stack of what compiles it.
        (
            {"guided_grammar": "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(9000)) + 'a9000: "x"'},
            "complex",
        ),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_a_400_and_nothing_else_happens(
    sdk: openai.OpenAI, stream: bool, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        create(sdk, extra_body=fields, stream=stream)
    assert caught.value.param == next(iter(fields))
    assert create(sdk, max_tokens=2).choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "feed"}}], ids=["required", "named"]
)
def test_forced_calls_have_arguments_that_match(sdk: openai.OpenAI, choice: Any, stream: bool) -> None:
    for seed in range(2):
        fields = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "parallel_tool_calls": False}
        if stream:
            model = "megatron"
            with sdk.chat.completions.stream(model=model, messages=HELLO, max_tokens=400, **fields) as events:
                answer = events.get_final_completion().choices[0]
        else:
            answer = create(sdk, **fields).choices[0]
        assert answer.finish_reason == "tool_calls"
        assert not answer.message.content
        [call] = answer.message.tool_calls
        assert call.function.name in (["feed", "stop"] if choice == "required" else ["feed"])
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMA if call.function.name == "feed" else {"type": "object"})


def test_generate_takes_regexes_grammars_and_schemas(url: str) -> None:
    def text(**params: Any) -> str:
        body = {"text": "hello", "sampling_params": {"max_new_tokens": 300, "seed": 1, **params}}
        reply = httpx.post(f"{url}/generate", json=body, timeout=60).json()
        assert reply["meta_info"]["finish_reason"]["type"] == "stop", reply
        return str(reply["text"])

    assert re.fullmatch("[ab]{3}-(x|yz)", text(regex="[ab]{3}-(x|yz)"))
    assert text(grammar='root ::= "yes" | "no"', temperature=0) in ("yes", "no")
    jsonschema.validate(json.loads(text(json_schema=SCHEMA)), SCHEMA)
    assert text(regex="a{5}", logit_bias={"0": 100}, repetition_penalty=1.9, presence_penalty=2) == "aaaaa"

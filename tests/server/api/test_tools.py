"""Functions and reasoning in chats, by OpenAI's own client. The stub engine answers with what it was told, so a message
decides what the model says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}|{{ call.function.name }}:{{ call.function.arguments.x }}{% endfor %}"
    "{% if m.tool_call_id %}|{{ m.tool_call_id }}{% endif %}"
    "{% if not loop.last %}|{% endif %}{% endfor %}"
    "{% for t in tools or [] %}<|im_end|>{{ t.function.name }} {{ t.function.description }}{% endfor %}<|im_end|>"
)
CALL = '<tool_call>{"name":"%s","arguments":{"x":"}"}}</tool_call>'
PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}}


def tool(name: str, **fields: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **fields}}


TOOLS = [tool("a", description=""), tool("b", description="Naps.")]


@pytest.fixture(scope="module")
def server(start_stub_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    flags = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3", "chat_template": str(template)}
    with start_stub_server(**flags) as server:
        yield server


@pytest.fixture
def sdk(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def answer(sdk: openai.OpenAI, text: str, *, stream: bool, **fields: Any) -> dict[str, Any]:
    """The message that the client puts together, and why it ended."""
    fields = {"model": sdk.models.list().data[0].id, "messages": [{"role": "user", "content": text}]} | fields
    if not stream:
        choice = sdk.chat.completions.create(**fields).choices[0]
        message = choice.message.model_dump(exclude_none=True)
        return message | {"finish_reason": choice.finish_reason}
    with sdk.chat.completions.stream(**fields) as events:
        chunks = [event.chunk for event in events if event.type == "chunk"]
        choice = events.get_final_completion().choices[0]
    deltas = [chunk.choices[0].delta.model_dump(exclude_none=True) for chunk in chunks if chunk.choices]
    message = {"role": "assistant", "content": choice.message.content}
    reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    calls = [call.model_dump(exclude_none=True) for call in choice.message.tool_calls or []]
    for call in calls:
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    message |= ({"reasoning_content": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})
    return message | {"finish_reason": choice.finish_reason}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_arrive_with_their_arguments(sdk: openai.OpenAI, stream: bool) -> None:
    message = answer(sdk, f"So.\n{CALL % 'a'}\n{CALL % 'b'}", stream=stream, tools=TOOLS)
    assert message["finish_reason"] == "tool_calls"
    assert message["content"] == "So."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["a", "b"]
    assert all(json.loads(call["function"]["arguments"]) == {"x": "}"} for call in message["tool_calls"])
    assert len({call["id"] for call in message["tool_calls"]}) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_content_and_calls_are_told_apart(sdk: openai.OpenAI, stream: bool) -> None:
    text = f"<think>\nI must look.\n</think>\n\n{CALL % 'a'}"
    message = answer(sdk, text, stream=stream, tools=TOOLS)
    assert message["reasoning_content"] == "I must look."
    assert message["tool_calls"][0]["function"]["name"] == "a"
    assert not message.get("content")
    silent = answer(sdk, text, stream=stream, extra_body={"include_reasoning": False})
    assert "reasoning_content" not in silent
    assert silent["content"] == CALL % "a"  # no tools: it is text


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_calls_is_content(sdk: openai.OpenAI, stream: bool) -> None:
    message = answer(sdk, "a <tool is a < b", stream=stream, tools=TOOLS)
    assert message == {"role": "assistant", "content": "a <tool is a < b", "finish_reason": "stop"}


def test_only_one_call_where_parallel_ones_are_not_wanted(sdk: openai.OpenAI) -> None:
    message = answer(sdk, f"{CALL % 'a'}{CALL % 'b'}", stream=False, tools=TOOLS, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["a"]


def test_an_unfinished_call_says_length(sdk: openai.OpenAI) -> None:
    message = answer(sdk, CALL % "a", stream=False, tools=TOOLS, max_tokens=40)
    assert message["finish_reason"] == "length"


def test_choices_of_a_stream_are_read_each_for_itself(sdk: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": CALL % "a"}]
    model = sdk.models.list().data[0].id
    stream = sdk.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, n=2, stream=True  # type: ignore[call-overload]
    )  # fmt: skip
    arguments = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                arguments[choice.index] += call.function.arguments or ""
    assert [json.loads(text) for text in arguments.values()] == [{"x": "}"}] * 2


def test_the_template_is_told_of_tools_calls_and_results(sdk: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "a", "arguments": '{"x": "up"}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sky"},
    ]
    assert answer(sdk, "", stream=False, messages=messages)["content"] == "q||a:up|sky|c1"
    extra = {"skip_special_tokens": False, "ignore_eos": True}
    text = answer(sdk, "q", stream=False, tools=TOOLS, tool_choice="none", max_tokens=8, extra_body=extra)["content"]
    assert text.startswith("q<|im_end|>q")
    text = answer(sdk, "q", stream=False, tools=TOOLS, max_tokens=30, extra_body=extra)["content"]
    assert text.startswith("q<|im_end|>a <|im_end|>b Naps.<|im_end|>")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tool_choice": "required"}, ["a", "b"]),
        ({"tool_choice": {"type": "function", "function": {"name": "b"}}}, ["b"]),
    ],
)
def test_forced_calls_are_put_into_a_grammar(
    server: Any, sdk: openai.OpenAI, fields: dict[str, Any], names: list[str]
) -> None:
    answer(sdk, CALL % names[0], stream=False, tools=TOOLS, seed=len(names), **fields)
    added = server.wait_for_log(lambda entry: entry.get("seed") == len(names))
    assert [f'"name\\": \\"{name}\\"' in added["grammar"] for name in names] == [True] * len(names)
    assert added["grammar"].count("%json") == len(names)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"tools": [tool("a b")]}, "tools[0].function.name"),
    ({"tools": [tool("look"), tool("look")]}, "tools[1].function.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": TOOLS, "tool_choice": "required", "min_tokens": 2, "max_tokens": 9}, "min_tokens"),
    ({"tools": TOOLS * 65}, "tools"),
    ({"functions": [{"name": "look"}]}, "functions"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}]}, "messages"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSALS)
def test_what_cannot_be_done_is_refused_by_name(server: Any, fields: dict[str, Any], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_a_server_without_parser_or_template_says_what_it_needs(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    reply = client.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
    assert reply.status_code == 400
    assert "--chat-template" in reply.json()["error"]["message"]

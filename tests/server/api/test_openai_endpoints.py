"""/v1/completions, /v1/chat/completions and /v1/models, with OpenAI's own client where it matters."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

HELLO = [{"role": "user", "content": "hi"}]


def ask(client: httpx.Client, path: str, **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_openais_client_can_chat_and_stream(stub_server: Any) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{stub_server.url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(model=model, messages=HELLO, n=2, max_tokens=5)
        assert [choice.message.content for choice in answer.choices] == ["user\nhi"] * 2
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 10
        stream = client.chat.completions.create(
            model=model, messages=HELLO, seed=1004, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "user\nhi"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 6
        with pytest.raises(openai.BadRequestError, match=r"top_p must be greater than 0"):
            client.chat.completions.create(model=model, messages=HELLO, top_p=0)
        with pytest.raises(openai.NotFoundError, match="gpt-9"):
            client.chat.completions.create(model="gpt-9", messages=HELLO)


def test_chat_content_may_be_text_parts(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    one = ask(client, "/v1/chat/completions", messages=[{"role": "user", "content": parts}], max_tokens=5)
    other = ask(client, "/v1/chat/completions", messages=HELLO, max_tokens=5)
    assert one["choices"] == other["choices"]
    assert one["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]


def test_chat_fills_the_context_when_not_told_otherwise_and_clamps(client: httpx.Client) -> None:
    for limit in ({}, {"max_tokens": 32768}, {"max_completion_tokens": None}):
        usage = ask(client, "/v1/chat/completions", messages=HELLO, ignore_eos=True, **limit)["usage"]
        assert usage["total_tokens"] == 256


def test_a_literal_control_token_in_a_message_is_text(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "<|im_end|>"}]
    reply = ask(client, "/v1/chat/completions", messages=messages, skip_special_tokens=False)
    assert reply["choices"][0]["message"]["content"] == "<|im_start|>user\n<|im_end|>"
    assert reply["choices"][0]["stop_reason"] == 2


def test_chat_logprobs(client: httpx.Client) -> None:
    reply = ask(client, "/v1/chat/completions", messages=HELLO, max_tokens=2, logprobs=True, top_logprobs=2)
    entries = reply["choices"][0]["logprobs"]["content"]
    assert len(entries) == 2
    assert bytes(entries[0]["bytes"]).decode() == entries[0]["token"]
    assert [top["logprob"] for top in entries[0]["top_logprobs"]] == [-0.5, -1.5]


def test_completions_take_every_kind_of_prompt(client: httpx.Client) -> None:
    for prompt, texts in (("d", ["dd"]), ([70], ["dd"]), (["d", "e"], ["dd", "ee"]), ([[70], [71]], ["dd", "ee"])):
        reply = ask(client, "/v1/completions", prompt=prompt, max_tokens=2)
        assert [choice["text"] for choice in reply["choices"]] == texts
        assert [choice["index"] for choice in reply["choices"]] == list(range(len(texts)))


def test_echo_with_logprobs_as_lm_evaluation_harness_reads_it(client: httpx.Client) -> None:
    reply = ask(
        client, "/v1/completions", prompt=[[70, 71, 72]], max_tokens=1, logprobs=1, echo=True, temperature=0, seed=1234
    )
    choice = reply["choices"][0]
    assert choice["text"] == "defd"
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert logprobs["top_logprobs"] == [None, {"e": -0.5}, {"f": -0.5}, {"d": -0.5}]
    assert logprobs["tokens"] == ["d", "e", "f", "d"]
    assert logprobs["text_offset"] == [0, 1, 2, 3]


def test_parts_of_characters_have_names_of_their_own_in_logprobs(client: httpx.Client) -> None:
    reply = ask(client, "/v1/completions", prompt="😀", max_tokens=4, logprobs=0)
    assert reply["choices"][0]["text"] == "😀"
    assert reply["choices"][0]["logprobs"]["tokens"] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "d", "best_of": 3}, "best_of"),
        ("/v1/completions", {"prompt": "d", "suffix": "x"}, "suffix"),
        ("/v1/completions", {"max_tokens": 1}, "prompt"),
        ("/v1/completions", {"prompt": "d", "logprobs": 99}, "logprobs"),
        ("/v1/completions", {"prompt": "d", "max_tokens": 999}, "max_tokens"),
        ("/v1/completions", {"prompt": [[1], [400]]}, "prompt[1][0]"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": HELLO, "tools": [{"type": "function"}]}, "tools[0].function"),
        ("/v1/chat/completions", {"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
        ("/v1/chat/completions", {"messages": HELLO, "chat_template": "{{ x }}"}, "chat_template"),
        ("/v1/chat/completions", {"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, "messages[0].role"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "messages",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_refusals_have_openais_shape(client: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param in error["message"]


def test_harmless_defaults_of_other_clients_are_let_through(client: httpx.Client) -> None:
    extra = {"user": "me", "tools": [], "response_format": None, "store": False, "frequency_penalty": 0}
    assert ask(client, "/v1/chat/completions", messages=HELLO, max_tokens=1, **extra)["choices"]

"""What vLLM's and Megatron's clients send beyond OpenAI's fields, and how fields are refused, clamped or ignored."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

HELLO = [{"role": "user", "content": "hi"}]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def ask(client: httpx.Client, path: str, **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(client: httpx.Client, path: str, **body: Any) -> list[Any]:
    lines = client.post(path, json=body | {"stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def prompt_of(client: httpx.Client, **body: Any) -> str:
    """The text that a conversation became."""
    reply = ask(client, CHAT, max_tokens=1, return_token_ids=True, **body)
    return str(ask(client, "/detokenize", tokens=reply["prompt_token_ids"])["prompt"])


def test_prompt_logprobs_by_token_id(client: httpx.Client) -> None:
    reply = ask(client, COMPLETIONS, prompt=[70, 71], max_tokens=1, prompt_logprobs=2)
    first, second = reply["choices"][0]["prompt_logprobs"]
    assert first is None
    assert second == {
        "71": {"logprob": -0.5, "rank": 1, "decoded_token": "e"},
        "72": {"logprob": -1.5, "rank": 2, "decoded_token": "f"},
    }
    assert reply["choices"][0]["logprobs"] is None
    chat = ask(client, CHAT, messages=HELLO, max_tokens=1, prompt_logprobs=0)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_prompt_logprobs_and_an_echo_with_logprobs_each_have_their_own_number(client: httpx.Client) -> None:
    choice = ask(client, COMPLETIONS, prompt=[70, 71], max_tokens=1, prompt_logprobs=3, echo=True, logprobs=1)
    choice = choice["choices"][0]
    assert len(choice["prompt_logprobs"][1]) == 3
    assert choice["logprobs"]["top_logprobs"] == [None, {"e": -0.5}, {"d": -0.5}]


def test_token_ids_come_along(client: httpx.Client) -> None:
    choice = ask(client, COMPLETIONS, prompt="de", max_tokens=3, return_token_ids=True)["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([70, 71], [70, 71, 70])
    seen = events(client, COMPLETIONS, prompt="de", max_tokens=5, return_token_ids=True, seed=1004)
    assert [event["choices"][0].get("prompt_token_ids") for event in seen][:2] == [[70, 71], None]
    assert [token for event in seen for token in event["choices"][0]["token_ids"]] == [70, 71, 70, 71, 70]
    chat = ask(client, CHAT, messages=HELLO, max_tokens=3, return_token_ids=True)
    assert chat["choices"][0]["token_ids"] == chat["prompt_token_ids"][:3]


def test_priority_reaches_the_engine(client: httpx.Client, stub_server: Any) -> None:
    ask(client, CHAT, messages=HELLO, max_tokens=1, priority=-3)
    assert stub_server.engine_log()[-1]["priority"] == -3


def test_the_engine_knows_whose_tokens_are_read_as_they_come(client: httpx.Client, stub_server: Any) -> None:
    ask(client, CHAT, messages=HELLO, max_tokens=1)
    assert not stub_server.engine_log()[-1]["streamed"]
    events(client, COMPLETIONS, prompt="de", max_tokens=1)
    assert stub_server.engine_log()[-1]["streamed"]


def test_a_template_sees_the_requests_variables(client: httpx.Client, tokenizer_with_variables: Any) -> None:
    reply = tokenizer_with_variables.post(CHAT, json={
        "messages": HELLO, "max_tokens": 1, "return_token_ids": True,
        "chat_template_kwargs": {"mood": "brief <|im_end|>"},
    }).json()  # fmt: skip
    prompt = reply["prompt_token_ids"]
    text = tokenizer_with_variables.post("/detokenize", json={"tokens": prompt}).json()["prompt"]
    assert text == "mood: brief <|im_end|>\nhi"
    assert 2 not in prompt  # a control token spelled in a variable stays text


@pytest.fixture
def tokenizer_with_variables(start_stub_server: Any, tmp_path: Any) -> Any:
    template = tmp_path / "template.jinja"
    template.write_text("mood: {{ mood }}\n{% for m in messages %}{{ m.content }}{% endfor %}")
    with start_stub_server(chat_template=str(template)) as server, httpx.Client(base_url=server.url) as client:
        yield client


def test_the_final_message_can_be_continued(client: httpx.Client) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "he"}]
    opened = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhe"
    assert prompt_of(client, messages=messages, continue_final_message=True) == opened
    assert prompt_of(client, messages=messages, continue_final_message=True, add_generation_prompt=False) == opened
    assert prompt_of(client, messages=HELLO, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_prompts_that_are_too_long_have_openais_code(client: httpx.Client) -> None:
    for path, body in (
        (COMPLETIONS, {"prompt": [70] * 256}),
        (COMPLETIONS, {"prompt": [70] * 200, "max_tokens": 57}),
        (CHAT, {"messages": [{"role": "user", "content": "zzz " * 200}]}),
    ):
        reply = client.post(path, json=body)
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
        assert "256" in error["message"]


def test_where_a_large_max_tokens_is_clamped_is_for_the_operator(start_stub_server: Any) -> None:
    for setting, statuses in (("none", [400, 400]), ("all", [200, 200])):
        with start_stub_server(clamp_max_tokens=setting) as server:
            replies = [
                httpx.post(f"{server.url}{COMPLETIONS}", json={"prompt": "d", "max_tokens": 32768}),
                httpx.post(f"{server.url}{CHAT}", json={"messages": HELLO, "max_tokens": 32768}),
            ]
            assert [reply.status_code for reply in replies] == statuses


def test_unknown_fields_are_ignored_and_listed(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}], "audio": 1}]
    body = {"messages": messages, "max_tokens": 1, "<new>\n": 1, "unheard_of": [1], "nothing": None}
    reply = client.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    warnings = reply.headers["warnings"]
    for name in ("unheard_of", "messages[0].audio", "messages[0].content[0].cache_control", "<new>\\n"):
        assert name in warnings, warnings
    assert "nothing" not in warnings
    assert "warnings" not in client.post(CHAT, json={"messages": HELLO, "max_tokens": 1}).headers
    streamed = client.post(COMPLETIONS, json={"prompt": "d", "max_tokens": 1, "stream": True, "unheard_of": 1})
    assert "unheard_of" in streamed.headers["warnings"]


def test_many_unknown_fields_make_no_endless_header(client: httpx.Client) -> None:
    body = {"prompt": "d", "max_tokens": 1} | {f"field{i}" * 50: 1 for i in range(300)}
    reply = client.post(COMPLETIONS, json=body)
    assert reply.status_code == 200
    assert len(reply.headers["warnings"]) < 3000
    assert "280 more" in reply.headers["warnings"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "d", "logits_processors": ["x"]}, "logits_processors"),
        (COMPLETIONS, {"prompt": "d", "length_penalty": 0.5}, "length_penalty"),
        (COMPLETIONS, {"prompt": "d", "prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "d", "prompt_logprobs": -1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "d", "prompt_logprobs": -1, "echo": True, "logprobs": 2}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "d", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": [70], "add_BOS": True}, "add_BOS"),
        (COMPLETIONS, {"prompt": "d", "max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"prompt": "d", "multi_modal_data": {"image": "x"}}, "multi_modal_data"),
        (COMPLETIONS, {"prompt": "d", "streaming_interval": 0}, "streaming_interval"),
        (CHAT, {"messages": HELLO, "skip_prompt_log_probs": False}, "skip_prompt_log_probs"),
        (
            CHAT,
            {"messages": HELLO, "chat_template_kwargs": {"chat_template": "x"}},
            "chat_template_kwargs.chat_template",
        ),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs.tokenize"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": [1]}, "chat_template_kwargs"),
        (
            CHAT,
            {"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (CHAT, {"messages": HELLO, "priority": 2**40}, "priority"),
    ],
)
def test_refusals_name_the_field(client: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert param in reply.json()["error"]["message"]


def test_megatron_s_paths_are_the_same_without_v1(client: httpx.Client) -> None:
    body = {"prompt": "d", "max_tokens": 2}
    assert ask(client, "/completions", **body)["choices"] == ask(client, COMPLETIONS, **body)["choices"]
    assert ask(client, "/chat/completions", messages=HELLO, max_tokens=1)["choices"]
    assert client.post("/completions", json={"prompt": "d", "top_p": 0}).json()["error"]["param"] == "top_p"


def test_bos_is_put_or_taken_away_as_megatron_does(client: httpx.Client) -> None:
    def tokens(**body: Any) -> Any:
        reply = ask(client, COMPLETIONS, max_tokens=1, return_token_ids=True, **body)
        return reply["choices"][0]["prompt_token_ids"]

    assert tokens(prompt="d") == [70]
    assert tokens(prompt="d", add_BOS=True) == [1, 70]
    assert tokens(prompt=[1, 70]) == [1, 70]
    assert prompt_of(client, messages=HELLO, add_BOS=True).startswith("<|im_start|>user")
    assert prompt_of(client, messages=HELLO, add_BOS=False).startswith("user")


def test_megatron_s_tokenised_data(client: httpx.Client) -> None:
    body = {"max_tokens": 3, "return_tokenized_data": True, "logprobs": True}
    message = ask(client, CHAT, messages=HELLO, return_raw_text=True, **body)["choices"][0]["message"]
    assert message["generation_token_ids"] == message["prompt_token_ids"][:3]
    assert message["generation_log_probs"] == [-0.5] * 3
    assert message["raw_text"].endswith("assistant\n" + message["content"])
    body = {"prompt": "de", "max_tokens": 3, "return_tokenized_data": True, "logprobs": 0}
    choice = ask(client, COMPLETIONS, **body)["choices"][0]
    assert (choice["prompt_token_ids"], choice["generation_token_ids"]) == ([70, 71], [70, 71, 70])
    assert choice["generation_log_probs"] == [-0.5] * 3


def test_an_earlier_turn_keeps_its_tokens(client: httpx.Client) -> None:
    """The answer "hello" was made of single letters, though its text is one token now."""
    first = ask(client, CHAT, messages=HELLO, max_tokens=1, return_token_ids=True)["prompt_token_ids"]
    letters = ask(client, "/tokenize", prompt="h")["tokens"] + ask(client, "/tokenize", prompt="e")["tokens"]
    answer = {"role": "assistant", "content": "he", "prompt_token_ids": first, "generation_token_ids": [*letters, 2]}
    messages = [*HELLO, answer, {"role": "user", "content": "more"}]
    follow = ask(client, "/tokenize", prompt="\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")["tokens"]
    for prevent in ({}, {"prevent_retokenization": True}):
        reply = ask(client, CHAT, messages=messages, max_tokens=1, return_token_ids=True, **prevent)
        assert reply["prompt_token_ids"] == [*first, *letters, 2, *follow]
    anew = ask(client, CHAT, messages=messages, max_tokens=1, return_token_ids=True, prevent_retokenization=False)
    assert anew["prompt_token_ids"] != reply["prompt_token_ids"]
    answer["generation_token_ids"] = [400]
    refused = client.post(CHAT, json={"messages": messages})
    assert refused.json()["error"]["param"] == "messages[1].generation_token_ids[0]"


def test_streams_at_intervals(client: httpx.Client) -> None:
    body = {"prompt": "def", "max_tokens": 10, "return_token_ids": True, "seed": 1004}
    sizes = [len(e["choices"][0]["token_ids"]) for e in events(client, COMPLETIONS, streaming_interval=4, **body)]
    assert sum(sizes) == 10
    assert all(size >= 4 for size in sizes[:-1])


def test_echo_in_a_stream_comes_before_the_text(client: httpx.Client) -> None:
    body = {"prompt": [[70, 71], [72]], "max_tokens": 4, "echo": True, "logprobs": 1, "seed": 1004}
    plain = ask(client, COMPLETIONS, **body)["choices"]
    for index, whole in enumerate(plain):
        choices = [e["choices"][0] for e in events(client, COMPLETIONS, **body) if e["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == whole["text"]
        for name, values in whole["logprobs"].items():
            assert [value for choice in choices for value in choice["logprobs"][name]] == values


def test_a_prompt_alone_can_be_scored(client: httpx.Client) -> None:
    reply = ask(client, COMPLETIONS, prompt=[70, 71], max_tokens=0, echo=True, logprobs=1)
    choice = reply["choices"][0]
    assert choice["text"] == "de"
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0

"""What has killed servers, against a real engine on two ranks: each time an answer, and the next request is well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

VOCABULARY = 354  # tokens of the tests' tokenizer and <image>; the model has rows of padding behind them


@pytest.fixture(autouse=True)
def well_afterwards(real_server: Any) -> Iterator[None]:
    yield
    real_server.assert_well()


def refused(reply: httpx.Response, *words: str, status: int = 400) -> None:
    assert reply.status_code == status, reply.text[:500]
    message = reply.json()["error"]["message"]
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"top_p": 0}, ("top_p", "greater than 0")),
        ({"top_p": 1.5}, ("top_p", "1.5")),
        ({"temperature": 1e40}, ("temperature", "1e+40")),
        ({"temperature": -1}, ("temperature", "-1")),
        ({"n": 10**9}, ("n must be", "1000000000")),
        ({"max_new_tokens": 10**12}, ("max_new_tokens", "1000000000000")),
        ({"max_new_tokens": -1}, ("max_new_tokens", "-1")),
        ({"stop": [str(i) for i in range(10_000)]}, ("stop", "16", "10000")),
        ({"stop": "x" * 100_000}, ("stop", "1024", "100000")),
        ({"stop_token_ids": [VOCABULARY]}, ("stop_token_ids[0]", "354")),
        ({"logit_bias": {str(VOCABULARY): 1}}, ("logit_bias", "354")),
        ({"logit_bias": {"-1": 1}}, ("logit_bias", "-1")),
        ({"logit_bias": {"5": 1e9}}, ("logit_bias", "1000000000")),
        ({"repetition_penalty": 0}, ("repetition_penalty", "greater than 0")),
        ({"top_k": 2**70}, ("top_k",)),
        ({"seed": 2**64}, ("seed",)),
    ],
)
def test_sampling_out_of_range(real_server: Any, sampling: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(real_server.generate(sampling_params=sampling), *words)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1e-40},
        {"temperature": 1e-40, "top_p": 1e-9, "top_k": 1, "min_p": 1.0},
        {"temperature": 100, "top_k": 2**31 - 1, "top_p": 1e-12, "seed": 2**63 - 1},
        {"temperature": 1.0, "top_k": 5, "top_p": 0.5, "min_p": 0.9, "n": 8, "seed": -1},
        {"temperature": 1.0, "logit_bias": {str(i): -100.0 for i in range(VOCABULARY)}},
        {"temperature": 1.0, "repetition_penalty": 1e-6, "presence_penalty": -2, "frequency_penalty": 2},
        {"temperature": 1.0, "stop_token_ids": list(range(VOCABULARY)), "ignore_eos": False},
    ],
)
def test_legal_extremes_are_answered(real_server: Any, sampling: dict[str, Any]) -> None:
    reply = real_server.generate(sampling_params=sampling)
    assert reply.status_code == 200, reply.text
    if sampling == {"temperature": 1e-40}:
        assert reply.json()["output_ids"] == real_server.usual


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400"])
@pytest.mark.parametrize("field", ["top_p", "temperature", "min_p"])
def test_numbers_that_are_none(real_server: Any, field: str, value: str) -> None:
    body = f'{{"text": "x", "sampling_params": {{"{field}": {value}}}}}'
    refused(real_server.client.post("/generate", content=body), field)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/generate", {"text": "x", "top_k": 5}, ("top_k", "sampling_params")),
        ("/generate", {"input_ids": [VOCABULARY]}, ("input_ids[0]", "0 to 353", "354")),
        ("/generate", {"input_ids": [-1]}, ("input_ids[0]", "-1")),
        ("/generate", {"input_ids": [2**63]}, ("input_ids[0]",)),
        ("/generate", {"input_ids": [[]]}, ("input_ids[0]", "no tokens")),
        ("/generate", {"input_ids": [1] * 10_000}, ("10000 tokens", "512")),
        ("/generate", {"text": ["x"] * 2000}, ("text", "1024")),
        (
            "/generate",
            {"text": "x", "return_logprob": True, "top_logprobs_num": 10**6},
            ("top_logprobs_num", "1000000"),
        ),
        ("/generate", {"text": "x", "return_logprob": True, "logprob_start_len": -2}, ("logprob_start_len", "-2")),
        ("/v1/completions", {"prompt": [[]]}, ("prompt[0]", "no tokens")),
        ("/v1/completions", {"prompt": [VOCABULARY]}, ("prompt[0]", "354")),
        ("/v1/completions", {"prompt": "x", "n": 10**9}, ("n ",)),
        ("/v1/completions", {"prompt": "x", "logprobs": -1}, ("logprobs", "-1")),
        ("/v1/chat/completions", {"messages": []}, ("messages",)),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"},
            ("chat_template",),
        ),
    ],
)
def test_bodies_that_cannot_be_right(real_server: Any, path: str, body: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(real_server.client.post(path, json=body), *words)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"[{}]",
        b"null",
        b'"text"',
        b"",
        b"{",
        b"[" * 100_000,
        b'{"text":' * 50_000,
        b'{"a":[{"b":' * 30_000,
        b"\xff",
    ],
    ids=["list", "list of objects", "null", "string", "empty", "open", "arrays", "objects", "both", "bytes"],
)
def test_bodies_that_are_no_object(real_server: Any, path: str, data: bytes) -> None:
    refused(real_server.client.post(path, content=data))


def test_a_body_of_100_mb_is_refused_while_it_arrives(real_server: Any) -> None:
    pieces = (b"x" * (1 << 20) for _ in range(100))
    try:
        reply = real_server.client.post("/generate", content=pieces)
    except httpx.WriteError:
        return  # the connection was closed on the client, which was still sending: as good an answer as can be had
    refused(reply, "--max-body-mb", status=413)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_null_in_every_field(real_server: Any, path: str) -> None:
    description = real_server.client.get("/openapi.json").json()
    schema = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    good: dict[str, Any] = {
        "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 1}},
        "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    }[path]
    names = [name for name in schema["properties"] if name not in good]
    assert len(names) > 8
    whole = real_server.client.post(path, json=dict.fromkeys(names) | good)
    assert whole.status_code == 200, whole.text
    for name in schema["properties"]:
        reply = real_server.client.post(path, json=good | {name: None})
        assert reply.status_code in (200, 400), (name, reply.text)
    assert real_server.client.post(path, json=dict.fromkeys(schema["properties"])).status_code == 400


@pytest.mark.parametrize(
    "text", ["<image>", "<image><image> and <|im_end|>", "\u0000", "\ufffd" * 50, "e\u0301" * 40, "🙂" * 40]
)
def test_odd_texts_are_text(real_server: Any, text: str) -> None:
    """The spelling of a control token, the image's too, stays text."""
    assert real_server.generate(text).status_code == 200
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
    assert real_server.client.post("/v1/chat/completions", json=chat).status_code == 200


def test_half_a_surrogate_pair_is_no_text(real_server: Any) -> None:
    refused(real_server.client.post("/generate", content=json.dumps({"text": "\ud800"})))

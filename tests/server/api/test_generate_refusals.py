"""What /generate refuses: always 4xx with a sentence that says what is wrong, and the server goes on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

OK = {"max_new_tokens": 1}


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"text": "x", "top_k": 5}, "top_k", "belongs into sampling_params"),
        ({"text": "x", "unheard_of": 1}, "unheard_of", "not a field"),
        ({"text": "x", "sampling_params": {"beam_width": 4}}, "sampling_params.beam_width", "not a field"),
        ({}, None, "exactly one of text and input_ids"),
        ({"text": "x", "input_ids": [1]}, None, "exactly one of text and input_ids"),
        ({"text": 5}, "text", "string"),
        ({"text": []}, "text", "at least one prompt"),
        ({"text": ["x", 5]}, "text[1]", "string"),
        ({"text": ["x"] * 17}, "text", "at most 16 prompts"),
        ({"text": ""}, "text", "no tokens"),
        ({"input_ids": []}, "input_ids", "no tokens"),
        ({"input_ids": [[1], []]}, "input_ids[1]", "no tokens"),
        ({"input_ids": [1, 400]}, "input_ids[1]", "0 to 399"),
        ({"input_ids": [-1]}, "input_ids[0]", "-1"),
        ({"input_ids": [1.5]}, "input_ids[0]", "integer"),
        ({"input_ids": [True]}, "input_ids[0]", "integer"),
        ({"input_ids": ["1"]}, "input_ids[0]", "integer"),
        ({"input_ids": [[1], 2]}, "input_ids[1]", "list"),
        ({"input_ids": [10**30]}, "input_ids[0]", "0 to 399"),
        ({"input_ids": [1] * 256}, "input_ids", "256 tokens"),
        ({"text": "x", "image_data": "abc"}, "image_data", "text only"),
        ({"text": "x", "sampling_params": {"top_p": 0}}, "sampling_params.top_p", "greater than 0"),
        ({"text": "x", "sampling_params": {"top_p": 1.5}}, "sampling_params.top_p", "1.5"),
        ({"text": "x", "sampling_params": {"temperature": 1e40}}, "sampling_params.temperature", "1e+40"),
        ({"text": "x", "sampling_params": {"temperature": "hot"}}, "sampling_params.temperature", "'hot'"),
        ({"text": "x", "sampling_params": {"n": 10**9}}, "sampling_params.n", "at most 8"),
        ({"text": "x", "sampling_params": {"max_tokens": 10**9}}, "sampling_params.max_tokens", "1000000000"),
        ({"text": "x", "sampling_params": {"max_tokens": 1, "max_new_tokens": 2}}, "sampling_params.max_tokens", "one"),
        ({"text": "x", "sampling_params": {"logit_bias": {"400": 1}}}, "sampling_params.logit_bias", "0 to 399"),
        ({"text": ["x"], "sampling_params": [{"top_k": 0.5}]}, "sampling_params[0].top_k", "integer"),
        ({"text": ["x", "y"], "sampling_params": [OK]}, "sampling_params", "1 entries for 2 prompts"),
        ({"text": "x", "sampling_params": 7}, "sampling_params", "7"),
        ({"text": "x", "rid": ["a"]}, "rid", "1 prompts"),
        ({"text": ["x", "y"], "rid": ["a", "a"]}, "rid", "already in use"),
        ({"text": "x", "top_logprobs_num": 3}, "top_logprobs_num", "return_logprob"),
        ({"text": "x", "logprob_start_len": 0}, "logprob_start_len", "is 0, which needs return_logprob"),
        ({"text": "x", "return_text_in_logprobs": True}, "return_text_in_logprobs", "return_logprob"),
        ({"text": "x", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num", "at most 20"),
        ({"text": "x", "return_logprob": True, "logprob_start_len": 5}, "logprob_start_len", "at most 0"),
        ({"text": "x", "priority": 2**40}, "priority", "at most"),
        ({"text": "x", "stream": "yes"}, "stream", "boolean"),
    ],
)
def test_bad_fields(client: httpx.Client, body: dict[str, Any], field: str | None, words: str) -> None:
    reply = client.post("/generate", json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["field"] == field
    assert words in error["message"]
    assert field is None or field in error["message"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1, 2]", "must be a JSON object, but is an array"),
        (b"null", "must be a JSON object, but is null"),
        (b"[" * 200_000, "not valid JSON"),
        (b'{"text":' * 20_000 + b"1" + b"}" * 20_000, "not valid JSON"),
        (b'{"text": "x", "sampling_params": {"top_p": NaN}}', "sampling_params.top_p"),
        (b'{"text": "x", "sampling_params": {"temperature": 1e999}}', "sampling_params.temperature"),
        (b'{"text": "x", "sampling_params": {"n": ' + b"9" * 5000 + b"}}", "not valid JSON"),
        (b'{"text": "\\ud800"}', ""),
    ],
)
def test_bad_bodies(client: httpx.Client, data: bytes, words: str) -> None:
    reply = client.post("/generate", content=data)
    assert reply.status_code == 400, reply.text
    assert words in reply.json()["error"]["message"]


def test_bodies_over_the_limit_are_refused_declared_or_not(client: httpx.Client) -> None:
    body = b'{"text": "' + b"x" * (1 << 20) + b'"}'
    declared = client.post("/generate", content=body)
    assert declared.status_code == 413
    assert f"has {len(body)} bytes, but may have at most {1 << 20}" in declared.json()["error"]["message"]
    undeclared = client.post("/generate", content=(body[i : i + 65536] for i in range(0, len(body), 65536)))
    assert undeclared.status_code == 413
    assert "--max-body-mb" in undeclared.json()["error"]["message"]


def test_too_many_at_once_is_429(client: httpx.Client) -> None:
    body = {"input_ids": [[70]] * 16, "sampling_params": {"n": 8, "max_new_tokens": 1}}
    reply = client.post("/generate", json=body)
    assert reply.status_code == 429
    assert "--max-queued-requests 64" in reply.json()["error"]["message"]
    assert reply.headers["retry-after"] == "1"


def test_unknown_paths_and_methods_answer_in_json(client: httpx.Client) -> None:
    assert client.get("/nowhere").json()["error"]["type"] == "not_found"
    assert client.get("/generate").status_code == 405

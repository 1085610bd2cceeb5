"""Guesses over HTTP: several tokens a step reach clients as one a step would, streamed or not.

A bias makes the tiny model repeat one token, so guesses come true; min_tokens as large as max_tokens forbids them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

NUM_TOKENS = 40


@pytest.fixture(scope="module")
def client(
    byte_level_checkpoint: Path, running_server: Callable[..., AbstractContextManager[str]]
) -> Iterator[httpx.Client]:
    flags = ("--kv-cache-gb", "0.02", "--threads", "1", "--speculative-tokens", "7")
    with running_server(byte_level_checkpoint, *flags) as url, httpx.Client(base_url=url, timeout=120) as client:
        yield client


def body(token: int, **changes: Any) -> dict[str, Any]:
    params = {"max_tokens": NUM_TOKENS, "temperature": 0, "logit_bias": {str(token): 100}, "ignore_eos": True}
    return {"prompt": "hello world", **params, "logprobs": 1, "return_token_ids": True, **changes}


def choices(client: httpx.Client, request: dict[str, Any]) -> list[dict[str, Any]]:
    reply = client.post("/v1/completions", json=request)
    assert reply.is_success, reply.text
    made: list[dict[str, Any]] = reply.json()["choices"]
    return made


def accepted_tokens(client: httpx.Client) -> int:
    count: int = client.get("/server_info").json()["stats"]["total_accepted_tokens"]
    return count


def text_and_token(client: httpx.Client) -> tuple[str, int]:
    """A letter and its token."""
    [token] = client.post("/tokenize", json={"prompt": "h", "add_special_tokens": False}).json()["tokens"]
    return "h", token


def test_answers_are_those_without_guesses(client: httpx.Client) -> None:
    letter, token = text_and_token(client)
    [without] = choices(client, body(token, min_tokens=NUM_TOKENS))
    assert accepted_tokens(client) == 0
    assert without["text"] == letter * NUM_TOKENS
    with_guesses = choices(client, body(token, n=3))
    assert accepted_tokens(client) > NUM_TOKENS
    for choice in with_guesses:
        assert choice == without | {"index": choice["index"]}
    metrics = client.get("/metrics").text
    [counted] = [line for line in metrics.splitlines() if line.startswith("megaserve:spec_decode_num_accepted_tokens_")]
    assert float(counted.split()[-1]) == accepted_tokens(client)


def test_a_stop_string_in_the_middle_of_a_run_cuts_there(client: httpx.Client) -> None:
    letter, token = text_and_token(client)
    for length in (1, 13, 22):
        [choice] = choices(client, body(token, stop=[letter * length]))
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        assert choice["token_ids"] == [token] * length
        assert len(choice["logprobs"]["tokens"]) == length


def test_streams_add_up_to_the_whole(client: httpx.Client) -> None:
    _, token = text_and_token(client)
    request = body(token, n=2)
    wholes = choices(client, request)
    lines = client.post("/v1/completions", json=request | {"stream": True}).text.split("\n\n")[:-2]
    events = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
    assert len(events) < 2 * NUM_TOKENS / 2
    for whole in wholes:
        own = [event for event in events if event["index"] == whole["index"]]
        assert "".join(event["text"] for event in own) == whole["text"]
        assert [token for event in own for token in event["token_ids"]] == whole["token_ids"]
        logprobs = [value for event in own for value in event["logprobs"]["token_logprobs"]]
        assert logprobs == whole["logprobs"]["token_logprobs"]

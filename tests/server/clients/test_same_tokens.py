"""A request's tokens over HTTP, in fp32, whatever runs beside it and however it is sent."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

WAYS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.3, "seed": 4, "top_p": 0.8},
    {"temperature": 0.7, "seed": 5, "top_k": 7, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 6, "min_p": 0.05, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"temperature": 1.1, "seed": 7, "logit_bias": {"70": 4.0}, "min_tokens": 10},
]


def probe(index: int) -> dict[str, Any]:
    prompt = random.Random(index).choices(range(3, 350), k=5 + 11 * index)
    return {"prompt": prompt, "max_tokens": 24, "return_token_ids": True, "logprobs": 0, "echo": True, **WAYS[index]}


def neighbour(index: int) -> dict[str, Any]:
    rng = random.Random(100 + index)
    prompt = rng.choices(range(3, 350), k=rng.randrange(1, 80))
    return {"prompt": prompt, "max_tokens": rng.randrange(8, 60), "temperature": rng.choice([0, 1]), "ignore_eos": True}


@pytest.fixture
def client(server_url: str) -> Any:
    limits = httpx.Limits(max_connections=40)
    with httpx.Client(base_url=server_url, timeout=120, limits=limits) as client:
        yield client


def choice(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    reply = client.post("/v1/completions", json=body)
    assert reply.is_success, reply.text
    made: dict[str, Any] = reply.json()["choices"][0]
    return made


def test_alone_and_among_thirty_two_others(client: httpx.Client) -> None:
    bodies = [probe(index) for index in range(len(WAYS))]
    alone = [choice(client, body) for body in bodies]
    assert len({tuple(made["token_ids"]) for made in alone}) == len(bodies)
    for body, expected in zip(bodies, alone, strict=True):
        with ThreadPoolExecutor(33) as pool:
            others = [pool.submit(choice, client, neighbour(index)) for index in range(32)]
            among = pool.submit(choice, client, body).result()
            assert all(other.exception() is None for other in others)
        assert among["token_ids"] == expected["token_ids"]
        first, *values = among["logprobs"]["token_logprobs"]
        assert first is None
        assert values == pytest.approx(expected["logprobs"]["token_logprobs"][1:], abs=1e-4)


def test_a_stream_has_the_same_text_and_tokens(client: httpx.Client) -> None:
    for index in range(len(WAYS)):
        body = probe(index)
        whole = choice(client, body)
        lines = client.post("/v1/completions", json=body | {"stream": True}).text.split("\n\n")[:-2]
        pieces = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
        assert "".join(piece["text"] for piece in pieces) == whole["text"]
        assert [token for piece in pieces for token in piece["token_ids"]] == whole["token_ids"]
        assert pieces[-1]["finish_reason"] == whole["finish_reason"]

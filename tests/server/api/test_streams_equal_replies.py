"""200 random requests, streamed and not: stop strings that straddle tokens, and text whose characters do."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx

PIECES = [
    "hello",
    " world",
    "😀",
    "🧑‍🚀",
    "é",
    "stop",
    "\n",
    " dog",
    "日本",
    "a",
    "b",
    "zz",
    " the quick",
    "<|im_end|>",
]
NUM_REQUESTS = 200


def a_request(seed: int) -> dict[str, Any]:
    """The stub answers with the prompt's own tokens, again and again: so a stop string cut out of the prompt's text, or
    out of two rounds of it, is met for sure, mostly in the middle of tokens."""
    rng = random.Random(seed)
    text = "".join(rng.choices(PIECES, k=rng.randrange(1, 9)))
    body: dict[str, Any] = {"prompt": text, "max_tokens": rng.randrange(1, 90), "n": rng.choice([1, 1, 1, 2])}
    if rng.random() < 0.7:
        rounds = text * 2
        starts = [rng.randrange(len(text)) for _ in range(rng.randrange(1, 4))]
        body["stop"] = [rounds[start : start + rng.randrange(1, 7)] for start in starts]
    if rng.random() < 0.3:
        body["include_stop_str_in_output"] = True
    if rng.random() < 0.3:
        body["min_tokens"] = rng.randrange(body["max_tokens"] + 1)
    if rng.random() < 0.3:
        body |= {"logprobs": 1, "echo": rng.random() < 0.5}
    return body | {"return_token_ids": True, "stream_options": None}


def joined(events: list[Any]) -> dict[int, dict[str, Any]]:
    """The choices that a stream's events add up to."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            whole = choices.setdefault(choice["index"], choice | {"text": "", "token_ids": [], "logprobs": None})
            whole["text"] += choice["text"]
            whole["token_ids"] += choice["token_ids"]
            whole["finish_reason"], whole["stop_reason"] = choice["finish_reason"], choice["stop_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                whole["logprobs"] = whole["logprobs"] or {}
                whole["logprobs"].setdefault(name, []).extend(values)
    return choices


async def compare(client: httpx.AsyncClient, seed: int) -> str | None:
    """How the sequences of one request ended, the first one's; fails on any difference."""
    body = a_request(seed)
    plain = (await client.post("/v1/completions", json=body)).json()
    streamed = await client.post("/v1/completions", json={**body, "stream": True})
    *lines, done, rest = streamed.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    choices = joined([json.loads(line.removeprefix("data: ")) for line in lines])
    for choice in plain["choices"]:
        assert choices[choice["index"]] == choice, body
        assert "�" not in choice["text"][:-1]
    stop_reason: str | None = plain["choices"][0]["stop_reason"]
    return stop_reason


async def test_two_hundred_random_requests(stub_server: Any) -> None:
    gate = asyncio.Semaphore(16)
    async with httpx.AsyncClient(base_url=stub_server.url, timeout=60) as client:

        async def one(seed: int) -> str | None:
            async with gate:
                return await compare(client, seed)

        reasons = await asyncio.gather(*map(one, range(NUM_REQUESTS)))
    stopped = [reason for reason in reasons if reason]
    assert len(stopped) > NUM_REQUESTS / 4
    assert any(len(reason) > 1 and not reason.isascii() for reason in stopped)

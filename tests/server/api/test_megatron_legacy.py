"""PUT /api: every parameter that Megatron's text generation server documents is honoured or refused by name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest


def ask(client: httpx.Client, **body: Any) -> Any:
    reply = client.put("/api", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_prompts_and_completions_with_tokens_and_segments(client: httpx.Client) -> None:
    reply = ask(client, prompts=["de", "f"], tokens_to_generate=3)
    assert reply == {
        "text": ["deded", "ffff"],
        "segments": [["d", "e", "d", "e", "d"], ["f", "f", "f", "f"]],
        "tokens": [[70, 71, 70, 71, 70], [72, 72, 72, 72]],
    }


def test_sixty_four_tokens_when_not_told_otherwise(client: httpx.Client) -> None:
    assert ask(client, prompts=["d"]) == ask(client, prompts=["d"], tokens_to_generate=64)


def test_logprobs_are_of_all_tokens_but_the_first(client: httpx.Client) -> None:
    assert ask(client, prompts=["de"], tokens_to_generate=2, logprobs=True)["logprobs"] == [[-0.5, -0.5, -0.5]]


def test_a_prompt_alone_can_be_scored(client: httpx.Client) -> None:
    reply = ask(client, prompts=["def"], tokens_to_generate=0, logprobs=True)
    assert reply["text"] == ["def"]
    assert reply["tokens"] == [[70, 71, 72]]
    assert reply["logprobs"] == [[-0.5, -0.5]]


def test_bos_is_added_on_request_only(client: httpx.Client) -> None:
    assert ask(client, prompts=["d"], tokens_to_generate=1)["tokens"] == [[70, 70]]
    assert ask(client, prompts=["d", ""], tokens_to_generate=1, add_BOS=True)["tokens"] == [[1, 70, 1], [1, 1]]


def test_what_stopped_a_text_stays_in_it(client: httpx.Client) -> None:
    assert ask(client, prompts=["a\nb\n\nc"], stop_on_eol=True)["text"] == ["a\nb\n\nca\n"]
    assert ask(client, prompts=["a\nb\n\nc"], stop_on_double_eol=True)["text"] == ["a\nb\n\nca\nb\n\n"]
    assert ask(client, prompts=["de"], stop_token=71)["tokens"] == [[70, 71, 70, 71]]


def test_a_seed_reaches_the_engine(client: httpx.Client, stub_server: Any) -> None:
    ask(client, prompts=["zebra"], tokens_to_generate=1, random_seed=77, top_k=5, temperature=0.5, no_log=True)
    assert stub_server.engine_log()[-1]["seed"] == 77


def test_values_that_ask_for_nothing_are_let_through(client: httpx.Client) -> None:
    ask(client, prompts=["d"], tokens_to_generate=1, top_p=0.0, top_k=0, top_p_decay=0.0, length_penalty=1.0)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompts": ["d"], "beam_width": 4}, "beam_width"),
        ({"prompts": ["d"], "max_len": 4}, "max_len"),
        ({"sentences": ["d"]}, "sentences"),
        ({"prompts": ["d"], "top_p": 0.5, "top_p_decay": 0.1}, "top_p_decay"),
        ({"prompts": ["d"], "top_p": 0.5, "top_p_bound": 0.1}, "top_p_bound"),
        ({"prompts": ["d"], "prevent_newline_after_colon": True}, "prevent_newline_after_colon"),
        ({"prompts": ["d"], "length_penalty": 0.5}, "length_penalty"),
        ({}, "prompts"),
        ({"prompts": "d"}, "prompts"),
        ({"prompts": []}, "prompts"),
        ({"prompts": ["d"] * 129}, "prompts"),
        ({"prompts": [5]}, "prompts[0]"),
        ({"prompts": ["d", ""]}, "prompts[1]"),
        ({"prompts": ["d"], "tokens_to_generate": 0}, "tokens_to_generate"),
        ({"prompts": ["d"], "tokens_to_generate": -1}, "tokens_to_generate"),
        ({"prompts": ["d"], "tokens_to_generate": 10**9}, "tokens_to_generate"),
        ({"prompts": ["d"], "logprobs": 1}, "logprobs"),
        ({"prompts": ["d"], "temperature": 0.0}, "temperature"),
        ({"prompts": ["d"], "temperature": 101}, "temperature"),
        ({"prompts": ["d"], "top_k": 1001}, "top_k"),
        ({"prompts": ["d"], "top_k": -1}, "top_k"),
        ({"prompts": ["d"], "top_p": 1.5}, "top_p"),
        ({"prompts": ["d"], "top_p": 0.5, "top_k": 5}, "top_p"),
        ({"prompts": ["d"], "random_seed": -1}, "random_seed"),
        ({"prompts": ["d"], "stop_token": 400}, "stop_token[0]"),
        ({"prompts": ["d"], "unheard_of": 1}, "unheard_of"),
    ],
)
def test_refusals_are_400_in_json_and_name_the_field(client: httpx.Client, body: dict[str, Any], field: str) -> None:
    reply = client.put("/api", json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["field"] == field
    assert field in error["message"]


def test_only_put(client: httpx.Client) -> None:
    assert client.post("/api", json={"prompts": ["d"]}).status_code == 405

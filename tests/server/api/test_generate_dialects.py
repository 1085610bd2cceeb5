"""/generate by vLLM's demo server and by TGI: chosen by the prompt's field, each with its own reply and stream."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

SLOW = 1004


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def tgi(client: httpx.Client, inputs: str, path: str = "/generate", **parameters: Any) -> Any:
    return post(client, path, {"inputs": inputs, "parameters": {"max_new_tokens": 3, **parameters}})


def tgi_events(client: httpx.Client, body: dict[str, Any], path: str = "/generate_stream") -> list[Any]:
    reply = client.post(path, json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, rest = reply.text.split("\n\n")
    assert rest == ""  # and nothing like [DONE]
    return [json.loads(event.removeprefix("data:")) for event in events]


def test_vllm_s_demo_answers_with_prompt_and_completion(client: httpx.Client) -> None:
    assert post(client, "/generate", {"prompt": "de", "max_tokens": 3}) == {"text": ["deded"]}
    assert post(client, "/generate", {"prompt": "d", "max_tokens": 2, "n": 2, "use_beam_search": False}) == {
        "text": ["ddd", "ddd"]
    }


def test_vllm_s_demo_streams_lines_with_all_text_so_far(client: httpx.Client) -> None:
    body = {"prompt": "de", "max_tokens": 4, "n": 2, "stream": True, "seed": SLOW}
    lines = client.post("/generate", json=body).text.splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert len(texts) > 2
    assert texts[-1] == ["dedede"] * 2
    assert all(len(text) == 2 and "dedede".startswith(text[0]) and text[0].startswith("de") for text in texts)


def test_tgi_answers_with_the_generated_text(client: httpx.Client) -> None:
    assert tgi(client, "de") == {"generated_text": "ded"}
    assert tgi(client, "de", return_full_text=True) == {"generated_text": "deded"}
    assert tgi(client, "def", truncate=2) == {"generated_text": "efe"}
    assert tgi(client, "def", stop=["fd"], max_new_tokens=9) == {"generated_text": "defd"}


def test_tgi_details(client: httpx.Client) -> None:
    details = tgi(client, "de", details=True, decoder_input_details=True, top_n_tokens=2)["details"]
    assert details["finish_reason"] == "length"
    assert (details["generated_tokens"], details["input_length"], details["seed"]) == (3, 2, None)
    assert details["prefill"] == [
        {"id": 70, "text": "d", "logprob": None},
        {"id": 71, "text": "e", "logprob": -0.5},
    ]
    assert details["tokens"][1] == {"id": 71, "text": "e", "logprob": -0.5, "special": False}
    assert details["top_tokens"][0] == [
        {"id": 70, "text": "d", "logprob": -0.5, "special": False},
        {"id": 71, "text": "e", "logprob": -1.5, "special": False},
    ]


def test_tgi_is_greedy_unless_something_asks_for_sampling(client: httpx.Client, stub_server: Any) -> None:
    def seeds(**parameters: Any) -> tuple[Any, Any]:
        """What the reply says, and what the engine got."""
        details = tgi(client, "d", details=True, **parameters)["details"]
        return details["seed"], stub_server.engine_log()[-1]["seed"]

    assert seeds() == (None, None)
    assert seeds(temperature=1.0, top_p=1.0) == (None, None)
    assert seeds(do_sample=True, seed=7) == (7, 7)
    said, used = seeds(temperature=0.5)
    assert isinstance(said, int)
    assert said == used


def test_tgi_grammars_reach_the_engine(client: httpx.Client, stub_server: Any) -> None:
    tgi(client, "d", grammar={"type": "regex", "value": "a+"})
    assert stub_server.engine_log()[-1]["grammar"] == "a+"
    tgi(client, "d", grammar={"type": "json", "value": {"type": "boolean"}})
    assert json.loads(stub_server.engine_log()[-1]["grammar"])["type"] == "boolean"


def test_tgi_best_of_reports_the_others_too(client: httpx.Client) -> None:
    reply = tgi(client, "d", do_sample=True, best_of=3, details=True)
    assert reply["generated_text"] == "ddd"
    assert [other["generated_text"] for other in reply["details"]["best_of_sequences"]] == ["ddd", "ddd"]


@pytest.mark.parametrize("path", ["/generate_stream", "/generate"])
def test_tgi_streams_one_token_an_event(client: httpx.Client, path: str) -> None:
    parameters = {"max_new_tokens": 12, "details": True, "do_sample": True, "seed": SLOW}
    events = tgi_events(client, {"inputs": "a😀", "parameters": parameters, "stream": True}, path)
    assert [event["index"] for event in events] == list(range(1, 13))
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"]
    assert events[-1]["generated_text"].startswith("a😀a😀")
    assert all(event["generated_text"] is None and event["details"] is None for event in events[:-1])
    assert events[-1]["details"] == {
        "finish_reason": "length", "generated_tokens": 12, "input_length": 5, "seed": SLOW,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"prompt": "x", "text": "y"}, None, "text and prompt belong to requests of different shapes"),
        ({"prompt": "x", "inputs": "y"}, None, "prompt and inputs"),
        ({"inputs": "x", "input_ids": [1]}, None, "input_ids and inputs"),
        ({"prompt": "x", "sampling_params": {}}, "sampling_params", "not a field"),
        ({"prompt": "x", "parameters": {}}, "parameters", "not a field"),
        ({"inputs": "x", "max_tokens": 5}, "max_tokens", "not a field"),
        ({"text": "x", "parameters": {}}, "parameters", "not a field"),
        ({"prompt": ["x"]}, "prompt", "string"),
        ({"prompt": "x", "use_beam_search": True}, "use_beam_search", "not supported"),
        ({"prompt": "x", "best_of": 4}, "best_of", "not supported"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "at least 1"),
        ({"prompt": "x", "top_p": 2}, "top_p", "at most 1"),
        ({"inputs": "x", "parameters": {"typical_p": 0.9}}, "parameters.typical_p", "not supported"),
        ({"inputs": "x", "parameters": {"watermark": True}}, "parameters.watermark", "not supported"),
        ({"inputs": "x", "parameters": {"temperature": 0}}, "parameters.temperature", "greater than 0"),
        ({"inputs": "x", "parameters": {"top_p": 1.5}}, "parameters.top_p", "at most 1"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens", "at least 1"),
        ({"inputs": "x", "parameters": {"truncate": 0}}, "parameters.truncate", "at least 1"),
        ({"inputs": "x", "parameters": {"best_of": 2}}, "parameters.best_of", "do_sample"),
        ({"inputs": "x", "parameters": {"best_of": 99, "do_sample": True}}, "parameters.best_of", "at most 8"),
        ({"inputs": "x", "parameters": {"decoder_input_details": True}}, "parameters.decoder_input_details", "details"),
        ({"inputs": "x", "parameters": {"top_n_tokens": 2}}, "parameters.top_n_tokens", "details"),
        ({"inputs": "x", "parameters": {"details": True, "top_n_tokens": 21}}, "parameters.top_n_tokens", "at most 20"),
        ({"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": 5}}}, "parameters.grammar.value", "5"),
        ({"inputs": "x", "parameters": {"grammar": {"type": "x"}}}, "parameters.grammar.type", "json"),
        ({"inputs": ["x"]}, "inputs", "string"),
        ({"text": "x", "stream_mode": "delta"}, "stream_mode", "stream"),
    ],
)
def test_mixtures_and_wrong_values_are_refused(
    client: httpx.Client, body: dict[str, Any], field: str | None, words: str
) -> None:
    reply = client.post("/generate", json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["field"] == field
    assert words in error["message"]


def test_generate_stream_is_tgi_s_alone(client: httpx.Client) -> None:
    reply = client.post("/generate_stream", json={"text": "x"})
    assert reply.status_code == 400
    assert "inputs" in reply.json()["error"]["message"]

"""POST /generate over HTTP: the canonical shape, alone, in batches, streamed."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
import pytest


def generate(client: httpx.Client, **body: Any) -> Any:
    reply = client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The JSON of each event; checks that [DONE] ends the stream."""
    with client.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        data = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert data[-1] == "[DONE]"
    return [json.loads(entry) for entry in data[:-1]]


def test_text_in_text_out(client: httpx.Client) -> None:
    reply = generate(client, text="hello 😀", sampling_params={"max_new_tokens": 6}, rid="mine")
    assert reply["text"] == "hello 😀"
    assert len(reply["output_ids"]) == 6
    meta = reply["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (6, 6, 0)
    assert meta["e2e_latency"] >= meta["ttft"] >= 0
    assert meta["queue_time"] == 0


def test_the_reply_says_what_it_was_made_with(client: httpx.Client) -> None:
    meta = generate(client, text="hello", sampling_params={"temperature": 0.5, "top_k": -1, "stop": "x", "seed": -1})
    meta = meta["meta_info"]
    assert meta["weight_version"] == "iter_0000001"
    effective = meta["effective_sampling_params"]
    assert (effective["temperature"], effective["top_k"], effective["top_p"]) == (0.5, 0, 1.0)
    assert (effective["max_new_tokens"], effective["stop"]) == (128, ["x"])
    assert effective["stop_token_ids"] == [2]  # the model's own end
    assert effective["seed"] == 2**63 - 1
    again = generate(client, text="hello", sampling_params={"seed": effective["seed"]})
    assert again["meta_info"]["effective_sampling_params"]["seed"] == effective["seed"]


def test_put_is_post(client: httpx.Client) -> None:
    reply = client.put("/generate", json={"input_ids": [70], "sampling_params": {"max_tokens": 2}})
    assert reply.json()["output_ids"] == [70, 70]


def test_a_stop_token_counts_but_is_not_text(client: httpx.Client) -> None:
    reply = generate(client, input_ids=[70, 71, 2], sampling_params={"max_new_tokens": 9})
    assert (reply["text"], reply["output_ids"]) == ("de", [70, 71, 2])
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    assert reply["meta_info"]["completion_tokens"] == 3


def test_a_stop_string_is_found_across_tokens(client: httpx.Client) -> None:
    sampling = {"max_new_tokens": 50, "stop": ["fd"]}
    reply = generate(client, input_ids=[70, 71, 72], sampling_params=sampling)
    assert (reply["text"], reply["output_ids"]) == ("de", [70, 71, 72, 70])
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "fd"}
    included = generate(
        client, input_ids=[70, 71, 72], sampling_params={**sampling, "include_stop_str_in_output": True}
    )
    assert included["text"] == "defd"


def test_stop_strings_wait_for_min_new_tokens(client: httpx.Client) -> None:
    sampling = {"max_new_tokens": 50, "min_new_tokens": 5, "stop": "d"}
    assert generate(client, input_ids=[70, 71], sampling_params=sampling)["text"] == "dede"


def test_control_tokens_in_the_answer_are_hidden_unless_asked_for(client: httpx.Client) -> None:
    body = {"input_ids": [70, 1], "sampling_params": {"max_new_tokens": 3}}
    assert generate(client, **body)["text"] == "dd"
    body["sampling_params"]["skip_special_tokens"] = False  # type: ignore[index]
    assert generate(client, **body)["text"] == "d<|im_start|>d"


def test_a_batch_answers_in_order_with_its_own_parameters(client: httpx.Client) -> None:
    replies = generate(
        client,
        input_ids=[[70], [71, 72]],
        sampling_params=[{"max_new_tokens": 1}, {"max_new_tokens": 2, "n": 2}],
        rid=["a", "b"],
    )
    assert [reply["output_ids"] for reply in replies] == [[70], [71, 72], [71, 72]]
    assert [reply["meta_info"]["id"] for reply in replies] == ["a", "b-0", "b-1"]


def test_a_batch_of_one_is_a_list(client: httpx.Client) -> None:
    assert len(generate(client, text=["hello"], sampling_params={"max_new_tokens": 1})) == 1


def test_other_clients_defaults_about_logprobs_ask_for_nothing(client: httpx.Client) -> None:
    fields = {"return_logprob": False, "logprob_start_len": -1, "top_logprobs_num": 0, "return_text_in_logprobs": False}
    reply = generate(client, text="x", sampling_params={"max_new_tokens": 1}, **fields)
    assert "output_token_logprobs" not in reply["meta_info"]


def test_null_is_not_given(client: httpx.Client) -> None:
    from server.api.protocol import GenerateBody, SamplingBody

    body = dict.fromkeys(GenerateBody.model_fields) | {
        "text": "hello",
        "sampling_params": dict.fromkeys(SamplingBody.model_fields) | {"max_new_tokens": 1},
    }
    assert generate(client, **body)["text"] == "hello"
    assert generate(client, **{**body, "sampling_params": None})["meta_info"]["completion_tokens"] == 128


def test_streams_hold_all_text_so_far_and_end_like_the_plain_reply(client: httpx.Client) -> None:
    body = {"text": "hello 😀 world", "sampling_params": {"max_new_tokens": 40, "seed": 1004}}
    seen = events(client, "/generate", body)
    assert len(seen) > 5
    texts = [event["text"] for event in seen]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert not any("�" in text for text in texts[:-1])
    plain = generate(client, **body)
    assert (seen[-1]["text"], seen[-1]["output_ids"]) == (plain["text"], plain["output_ids"])
    assert seen[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 40}
    assert seen[0]["meta_info"]["finish_reason"] is None


def test_deltas_add_up_to_the_plain_reply(client: httpx.Client) -> None:
    body: dict[str, Any] = {
        "text": "hello 😀 world", "sampling_params": {"max_new_tokens": 40, "stop": ["zzz"]},
        "return_logprob": True, "logprob_start_len": 0,
    }  # fmt: skip
    plain = generate(client, **body)
    cumulative = events(client, "/generate", {**body, "stream_mode": "cumulative"})
    assert cumulative[-1]["text"] == plain["text"]
    body["sampling_params"]["seed"] = 1004  # slow, so that there are many events
    seen = events(client, "/generate", {**body, "stream_mode": "delta"})
    assert len(seen) > 5
    assert "".join(event["text"] for event in seen) == plain["text"]
    for name in ("input_token_logprobs", "output_token_logprobs"):
        entries = [entry for event in seen for entry in event["meta_info"][name]]
        assert entries == plain["meta_info"][name]
    assert [token for event in seen for token in event["output_ids"]] == plain["output_ids"]
    assert seen[-1]["meta_info"]["completion_tokens"] == 40


def test_a_streamed_batch_says_whose_event_it_is(client: httpx.Client) -> None:
    seen = events(client, "/generate", {"input_ids": [[70], [71]], "sampling_params": {"max_new_tokens": 2, "n": 2}})
    last = {event["index"]: event["text"] for event in seen}
    assert last == {0: "dd", 1: "dd", 2: "ee", 3: "ee"}


def test_streams_hold_stop_strings_back(client: httpx.Client) -> None:
    body = {"input_ids": [70, 71, 72], "sampling_params": {"max_new_tokens": 20, "stop": "efd", "seed": 1004}}
    assert [event["text"] for event in events(client, "/generate", body)][-1] == "d"
    assert all(event["text"] == "d" for event in events(client, "/generate", body))


def test_logprobs_in_triples(client: httpx.Client) -> None:
    body = {"input_ids": [70, 71], "sampling_params": {"max_new_tokens": 1}, "return_logprob": True}
    meta = generate(client, **body)["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 70, None]]
    assert meta["input_token_logprobs"] == []
    more = {"logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    meta = generate(client, **body, **more)["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 70, "d"], [-0.5, 71, "e"]]
    assert meta["input_top_logprobs"] == [None, [[-0.5, 71, "e"], [-1.5, 72, "f"]]]
    assert meta["output_top_logprobs"] == [[[-0.5, 70, "d"], [-1.5, 71, "e"]]]
    later = generate(client, **body, logprob_start_len=1)["meta_info"]
    assert later["input_token_logprobs"] == [[-0.5, 71, None]]


def test_a_prompt_alone_can_be_scored(client: httpx.Client) -> None:
    body = {"input_ids": [70, 71], "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    reply = generate(client, **body, logprob_start_len=0)
    assert (reply["text"], reply["output_ids"]) == ("", [])
    meta = reply["meta_info"]
    assert (meta["completion_tokens"], meta["finish_reason"]) == (0, {"type": "length", "length": 0})
    assert meta["input_token_logprobs"] == [[None, 70, None], [-0.5, 71, None]]
    assert meta["output_token_logprobs"] == []
    refused = client.post("/generate", json=body)
    assert "log-probabilities of the prompt alone" in refused.json()["error"]["message"]


def test_infinite_logprobs_are_floored(client: httpx.Client) -> None:
    body = {"input_ids": [70], "sampling_params": {"max_new_tokens": 1, "seed": 1006}, "return_logprob": True}
    assert generate(client, **body)["meta_info"]["output_token_logprobs"] == [[-9999.0, 70, None]]


@pytest.mark.parametrize(("seed", "message"), [(1002, "this one failed"), (1005, "not a number")])
def test_a_request_that_fails_in_the_engine_fails_alone(client: httpx.Client, seed: int, message: str) -> None:
    body = {"input_ids": [70], "sampling_params": {"max_new_tokens": 1, "seed": seed}, "return_logprob": True}
    reply = client.post("/generate", json=body)
    assert reply.status_code == 500
    assert message in reply.json()["error"]["message"]
    assert generate(client, input_ids=[70], sampling_params={"max_new_tokens": 1})["text"] == "d"

"""A request that nobody waits for any more is taken out of the engine."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import httpx
import pytest

SLOW = 1004
ENDLESS = {"max_new_tokens": 230, "seed": SLOW, "ignore_eos": True}


def marked_prompt() -> list[int]:
    """A prompt by which the test finds its request in the engine's log."""
    return [3 + byte for byte in uuid.uuid4().bytes]


def engine_id(server: Any, prompt: list[int]) -> str:
    added: str = server.wait_for_log(lambda entry: entry.get("prompt") == prompt)["added"]
    return added


def assert_aborted_while_running(server: Any, request_id: str) -> None:
    assert server.wait_for_log(lambda entry: entry.get("aborted") == request_id)["was_running"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_disconnect_aborts(stub_server: Any, path: str, stream: bool) -> None:
    prompt = marked_prompt()
    if path == "/generate":
        body: dict[str, Any] = {"input_ids": prompt, "sampling_params": ENDLESS, "stream": stream}
    else:
        body = {"prompt": prompt, "max_tokens": 200, "seed": SLOW, "ignore_eos": True, "stream": stream}
    impatient = httpx.Timeout(30, read=0.5)
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.stream("POST", stub_server.url + path, json=body, timeout=impatient) as reply,
    ):
        for _ in reply.iter_lines():
            raise httpx.ReadTimeout("left in the middle of the stream")
    assert_aborted_while_running(stub_server, engine_id(stub_server, prompt))


def test_abort_request_ends_it_with_what_it_has(stub_server: Any, client: httpx.Client) -> None:
    prompt, rid, replies = marked_prompt(), uuid.uuid4().hex, []
    body = {"input_ids": prompt, "sampling_params": ENDLESS, "rid": rid}
    waiting = threading.Thread(
        target=lambda: replies.append(httpx.post(f"{stub_server.url}/generate", json=body, timeout=60).json())
    )
    waiting.start()
    request_id = engine_id(stub_server, prompt)
    assert client.post("/generate", json=body).json()["error"]["field"] == "rid"
    assert client.post("/abort_request", json={"rid": rid}).json() == {"rid": rid, "aborted": True}
    waiting.join()
    assert replies[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(replies[0]["output_ids"]) < 230
    assert_aborted_while_running(stub_server, request_id)
    assert client.post("/abort_request", json={"rid": rid}).json() == {"rid": rid, "aborted": False}


def test_a_batch_is_aborted_by_its_one_rid(stub_server: Any, client: httpx.Client) -> None:
    prompts, rid, replies = [marked_prompt(), marked_prompt()], uuid.uuid4().hex, []
    body = {"input_ids": prompts, "sampling_params": ENDLESS, "rid": rid}
    waiting = threading.Thread(
        target=lambda: replies.extend(httpx.post(f"{stub_server.url}/generate", json=body, timeout=60).json())
    )
    waiting.start()
    for prompt in prompts:
        engine_id(stub_server, prompt)
    assert client.post("/abort_request", json={"rid": rid}).json() == {"rid": rid, "aborted": True}
    waiting.join()
    assert [reply["meta_info"]["id"] for reply in replies] == [f"{rid}_0", f"{rid}_1"]
    assert {reply["meta_info"]["finish_reason"]["type"] for reply in replies} == {"abort"}


def test_a_stop_string_frees_the_engine(stub_server: Any, client: httpx.Client) -> None:
    prompt = marked_prompt()
    first = client.post("/generate", json={"input_ids": prompt, "sampling_params": {"max_new_tokens": 1}}).json()
    body = {"input_ids": prompt, "sampling_params": {**ENDLESS, "stop": first["text"] or "�"}}
    assert client.post("/generate", json=body).json()["meta_info"]["finish_reason"]["type"] == "stop"
    request_id = stub_server.wait_for_log(lambda e: e.get("prompt") == prompt and e.get("seed") == SLOW)["added"]
    assert_aborted_while_running(stub_server, request_id)


def test_a_request_that_takes_too_long_is_504_and_aborted(start_stub_server: Any) -> None:
    with start_stub_server(request_timeout=0.5) as server:
        prompt = marked_prompt()
        reply = httpx.post(f"{server.url}/generate", json={"input_ids": prompt, "sampling_params": ENDLESS}, timeout=60)
        assert reply.status_code == 504
        assert "--request-timeout" in reply.json()["error"]["message"]
        assert_aborted_while_running(server, engine_id(server, prompt))
        streamed = httpx.post(
            f"{server.url}/generate", json={"text": "hello", "sampling_params": ENDLESS, "stream": True}, timeout=60
        )
        assert '"type":"timeout"' in streamed.text
        assert streamed.text.endswith("data: [DONE]\n\n")

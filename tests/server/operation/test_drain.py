"""SIGTERM with work under way: streams end as they would have, and what cannot end is told so."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from typing import Any

import httpx

SLOW = 1004
ADMIN = {"authorization": "Bearer admin-key-1"}


def stream(url: str, num_tokens: int) -> list[str]:
    """The data of all events."""
    sampling = {"max_new_tokens": num_tokens, "seed": SLOW, "ignore_eos": True}
    body = {"input_ids": [70], "stream": True, "sampling_params": sampling}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as reply:
        return [line.removeprefix("data: ") for line in reply.iter_lines() if line]


def test_a_stream_runs_to_its_end_while_new_work_is_refused(start_stub_server: Callable[..., Any]) -> None:
    events: list[str] = []
    with start_stub_server() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        work = threading.Thread(target=lambda: events.extend(stream(server.url, 40)))
        work.start()
        server.wait_for_log(lambda entry: "added" in entry)
        server.process.send_signal(signal.SIGTERM)
        while client.get("/health/ready").json()["status"] != "draining":
            assert work.is_alive()
        for path in ("/generate", "/v1/completions"):
            refused = client.post(path, json={"text": "x"} if path == "/generate" else {"prompt": "x"})
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
        assert client.get("/health").status_code == 200
        work.join()
        assert server.process.wait(30) == 0
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["output_ids"] == [70] * 40


def test_a_paused_engine_does_not_keep_the_server_from_ending(start_stub_server: Callable[..., Any]) -> None:
    events: list[str] = []
    with start_stub_server(drain_timeout=0.5, admin_api_key=["admin-key-1"]) as server:
        assert httpx.post(f"{server.url}/pause", headers=ADMIN).status_code == 200
        work = threading.Thread(target=lambda: events.extend(stream(server.url, 4)))
        work.start()
        server.wait_for_log(lambda entry: "added" in entry)
        server.process.send_signal(signal.SIGTERM)
        work.join()
        assert server.process.wait(30) == 0
    assert "stopped before" in json.loads(events[0])["error"]["message"]

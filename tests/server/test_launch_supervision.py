"""The HTTP process as an operating-system process: ranks that die, signals, and what is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

CRASH, SILENT, SLOW = 1001, 1003, 1004


def generate(url: str, **sampling: Any) -> httpx.Response:
    return httpx.post(f"{url}/generate", json={"input_ids": [70], "sampling_params": sampling}, timeout=60)


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def test_a_dead_engine_fails_what_is_pending_and_comes_back(start_stub_server: Any) -> None:
    with start_stub_server() as server:
        pending, replies = in_background(lambda: generate(server.url, max_new_tokens=200, seed=SLOW))
        streamed, streams = in_background(
            lambda: httpx.post(
                f"{server.url}/generate",
                json={"input_ids": [71], "stream": True, "sampling_params": {"max_new_tokens": 200, "seed": SLOW}},
                timeout=60,
            )
        )
        server.wait_for_log(lambda entry: entry.get("prompt") == [70])
        server.wait_for_log(lambda entry: entry.get("prompt") == [71])
        (stub,) = server.children()
        os.kill(stub, signal.SIGKILL)
        pending.join()
        streamed.join()
        assert replies[0].status_code == 503
        assert "SIGKILL" in replies[0].json()["error"]["message"]
        assert '"type":"unavailable"' in streams[0].text
        status, body = server.readiness()
        assert (status, body["status"]) == (503, "restarting")
        assert body["reason"]
        refused = generate(server.url, max_new_tokens=1)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        server.wait_until_ready()
        assert generate(server.url, max_new_tokens=2).json()["text"] == "dd"
        assert server.readiness()[1]["num_restarts"] == 1


def test_it_answers_while_the_ranks_load(start_stub_server: Any) -> None:
    with start_stub_server("--load-seconds", "3", wait=False) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        status, body = server.readiness()
        assert (status, body["status"], body["reason"]) == (503, "loading", "the ranks are starting")
        assert generate(server.url, max_new_tokens=1).status_code == 503
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] == "tiny"
        assert httpx.get(f"{server.url}/server_info").json()["document"]["kind"] == "gpt"
        server.wait_until_ready()


def test_an_engine_without_signs_of_life_is_restarted(start_stub_server: Any) -> None:
    with start_stub_server(progress_timeout=2.0) as server:
        reply = generate(server.url, max_new_tokens=1, seed=SILENT)
        assert reply.status_code == 503
        assert "no sign of life" in reply.json()["error"]["message"]
        server.wait_until_ready()
        assert generate(server.url, max_new_tokens=1).status_code == 200


def test_ranks_that_never_load_end_the_server_with_their_reason(
    start_stub_server: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with start_stub_server("--fail-to-load", wait=False) as server:
        assert server.process.wait(60) == 1
    assert "gave up after 3 starts: weights.pt: this file is damaged" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_when_idle_ends_it_in_order(
    start_stub_server: Any, wait_for_gone: Callable[[list[int]], None], number: signal.Signals
) -> None:
    with start_stub_server() as server:
        children = server.children()
        server.process.send_signal(number)
        assert server.process.wait(30) == 0
        assert children
        wait_for_gone(children)


def test_running_requests_finish_before_it_ends(start_stub_server: Any) -> None:
    with start_stub_server() as server:
        running, replies = in_background(lambda: generate(server.url, max_new_tokens=30, seed=SLOW))
        server.wait_for_log(lambda entry: entry.get("prompt") == [70])
        server.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        while server.readiness()[1]["status"] != "draining":
            assert time.monotonic() < deadline
        assert generate(server.url, max_new_tokens=1).status_code == 503
        running.join()
        assert replies[0].json()["output_ids"] == [70] * 30
        assert server.process.wait(30) == 0


def test_requests_that_do_not_finish_in_time_get_an_error(start_stub_server: Any) -> None:
    with start_stub_server(drain_timeout=0.3) as server:
        running, replies = in_background(lambda: generate(server.url, max_new_tokens=250, seed=SLOW))
        server.wait_for_log(lambda entry: entry.get("prompt") == [70])
        server.process.send_signal(signal.SIGTERM)
        running.join()
        assert replies[0].status_code == 503
        assert "stopped before" in replies[0].json()["error"]["message"]
        assert server.process.wait(30) == 0


def test_killing_the_parent_leaves_no_process_behind(
    start_stub_server: Any, wait_for_gone: Callable[[list[int]], None]
) -> None:
    with start_stub_server() as server:
        children = server.children()
        assert children
        server.process.kill()
        server.process.wait()
        wait_for_gone(children)


def test_the_run_directory_is_private_and_removed(start_stub_server: Any) -> None:
    with start_stub_server() as server:
        (stub,) = server.children()
        arguments = psutil.Process(stub).cmdline()
        directory = Path(arguments[arguments.index("--socket") + 1]).parent
        assert directory.stat().st_mode & 0o077 == 0
        server.process.terminate()
        server.process.wait(30)
        assert not directory.exists()


def test_the_http_process_never_loads_torch(start_stub_server: Any) -> None:
    with start_stub_server() as server:
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=60).status_code == 200
        mapped = {Path(entry.path).name for entry in psutil.Process(server.process.pid).memory_maps()}
        assert not {name for name in mapped if "torch" in name or name.startswith("libc10")}
        assert any("tokenizers" in name for name in mapped), "the listing of loaded libraries works"

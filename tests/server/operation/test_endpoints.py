"""What operators and their machines ask, on the stub engine."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.api.checkpoint_digest import CheckpointDigest

SLOW, STUCK = 1004, 1007


def metrics_of(client: httpx.Client) -> dict[str, float]:
    """Every sample by name and labels, the model's name left out."""
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            labels = [f"{key}={value}" for key, value in sorted(sample.labels.items()) if key != "model_name"]
            found[f"{sample.name}{{{','.join(labels)}}}" if labels else sample.name] = sample.value
    return found


def generate(client: httpx.Client, **sampling: Any) -> httpx.Response:
    return client.post("/generate", json={"input_ids": [70], "sampling_params": sampling})


def test_version_and_ping(client: httpx.Client) -> None:
    assert client.get("/version").json()["version"]
    assert client.get("/ping").status_code == 200


def test_server_info_says_what_is_served(client: httpx.Client) -> None:
    info = client.get("/server_info").json()
    assert info["model_kind"] == "gpt"
    checkpoint = info["checkpoint"]
    assert (checkpoint["path"], checkpoint["format"]) == ("/checkpoints/tiny/iter_0000001", "torch_dist")
    assert (checkpoint["iteration"], checkpoint["digest"]) == (1, None)  # there is no such directory
    assert info["limits"]["max_choices"] == 8
    assert info["limits"]["max_headers"] == 100


NAMES = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "kv_blocks_used", "kv_blocks_free",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total",
    "num_preemptions_total", "image_cache_hits_total", "image_encoder_seconds_total", "images_encoded_total",
    "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
    "time_to_first_token_seconds_count", "inter_token_latency_seconds_count", "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count", "request_prefill_time_seconds_count", "request_decode_time_seconds_count",
    "request_inference_time_seconds_count", "request_prompt_tokens_count", "request_generation_tokens_count",
    "batch_size_count", "iteration_tokens_count", "step_seconds_count{phase=decode}", "engine_restarts_total",
    *(f"request_success_total{{finished_reason={reason}}}" for reason in ("stop", "length", "abort", "error")),
)  # fmt: skip


def test_metrics_have_the_names_people_know(client: httpx.Client) -> None:
    generate(client, max_new_tokens=2)
    found = metrics_of(client)
    assert [name for name in NAMES if f"megaserve:{name}" not in found] == []


def test_metrics_count_what_happens(client: httpx.Client) -> None:
    before = metrics_of(client)
    for _ in range(3):
        assert generate(client, max_new_tokens=4, ignore_eos=True).status_code == 200
    assert (
        generate(client, max_new_tokens=9, stop_token_ids=[70]).json()["meta_info"]["finish_reason"]["type"] == "stop"
    )
    assert generate(client, top_p=7).status_code == 400
    assert generate(client, seed=1002).status_code == 500
    after = metrics_of(client)

    def grown(name: str) -> float:
        return after[f"megaserve:{name}"] - before.get(f"megaserve:{name}", 0)

    assert grown("request_success_total{finished_reason=length}") == 3
    assert grown("request_success_total{finished_reason=stop}") == 1
    assert grown("request_success_total{finished_reason=error}") == 1
    assert grown("inter_token_latency_seconds_count") == 9
    assert grown("time_to_first_token_seconds_count") == grown("e2e_request_latency_seconds_count") == 4
    assert grown("request_generation_tokens_sum") == 13
    assert grown("http_requests_total{method=POST,path=/generate,status=200}") == 4
    assert grown("http_requests_total{method=POST,path=/generate,status=400}") == 1
    assert grown("step_seconds_count{phase=decode}") >= 13
    client.get("/a/path/that/nobody/declared")
    assert not [name for name in metrics_of(client) if "nobody" in name]


def test_load_counts_what_is_under_way(stub_server: Any, client: httpx.Client) -> None:
    work = threading.Thread(target=lambda: generate(client, max_new_tokens=30, seed=SLOW, ignore_eos=True))
    with httpx.Client(base_url=stub_server.url) as other:
        work.start()
        while other.get("/load").json()["num_requests_running"] != 1:
            assert work.is_alive()
        assert other.get("/load").json()["server_load"] == 1
        work.join()
        assert other.get("/load").json()["server_load"] == 0


def test_health_generate_goes_through_the_engine(stub_server: Any, client: httpx.Client) -> None:
    before = len(stub_server.engine_log())
    assert client.get("/health_generate").json() == {"status": "ready"}
    assert [entry["prompt"] for entry in stub_server.engine_log()[before:]] == [[0]]


def test_pause_keeps_requests_until_resume(guarded_server: Any, admin: httpx.Client) -> None:
    assert admin.post("/pause").json() == {"paused": True}
    ready = admin.get("/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "paused")
    assert "/resume" in ready.json()["reason"]
    replies: list[httpx.Response] = []
    with httpx.Client(base_url=guarded_server.url, headers=admin.headers, timeout=60) as other:
        waiting = threading.Thread(target=lambda: replies.append(generate(other, max_new_tokens=2)))
        waiting.start()
        guarded_server.wait_for_log(lambda entry: "added" in entry)
        waiting.join(0.3)
        assert waiting.is_alive()
        assert admin.post("/resume").json() == {"paused": False}
        waiting.join()
    assert replies[0].status_code == 200
    assert admin.get("/health/ready").status_code == 200


def test_profiles_are_bounded_and_their_errors_are_told(guarded_server: Any, admin: httpx.Client) -> None:
    assert admin.post("/start_profile", json={"num_steps": 3}).json()["num_steps"] == 3
    assert guarded_server.wait_for_log(lambda entry: entry.get("control") == "start_profile")["num_steps"] == 3
    assert admin.post("/start_profile").status_code == 200
    for body in ({"num_steps": 0}, {"num_steps": 10**9}, {"num_steps": "3"}, {"steps": 3}):
        assert admin.post("/start_profile", json=body).status_code == 400
    stopped = admin.post("/stop_profile")
    assert (stopped.status_code, stopped.json()["error"]["type"]) == (409, "conflict")


def test_work_that_waits_without_progress_withdraws_readiness_and_then_restarts_the_ranks(
    guarded_server: Any, admin: httpx.Client
) -> None:
    """The ranks send signs of life all the while: those alone prove nothing."""
    replies: list[httpx.Response] = []
    with httpx.Client(base_url=guarded_server.url, headers=admin.headers, timeout=60) as other:
        stuck = threading.Thread(target=lambda: replies.append(generate(other, seed=STUCK)))
        stuck.start()
        while admin.get("/health/ready").is_success:
            assert stuck.is_alive()
        ready = admin.get("/health/ready").json()
        assert ready["status"] == "no_progress"
        assert "1 sequences wait" in ready["reason"]
        stuck.join()
    assert replies[0].status_code == 503
    guarded_server.wait_until_ready()


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        ("abc-123", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a b", False),
        ("a\tb", False),
        ("é", False),
    ],
)
def test_request_ids_are_taken_or_made_and_returned(client: httpx.Client, given: str, is_taken: bool) -> None:
    for path in ("/health", "/nowhere", "/load"):
        returned = client.get(path, headers={"x-request-id": given.encode("latin-1")}).headers["x-request-id"]
        assert (returned == given) == is_taken
        assert 1 <= len(returned) <= 128


def test_the_digest_depends_on_names_sizes_and_contents_and_not_on_the_place(tmp_path: Path) -> None:
    def digest(name: str, files: dict[str, bytes]) -> str | None:
        directory = tmp_path / name
        for file, data in files.items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            (directory / file).write_bytes(data)
        computed = CheckpointDigest(directory)
        assert computed.value is None
        computed.start()
        computed._thread.join()  # type: ignore[union-attr]
        return computed.value

    files = {"b.distcp": b"weights", "sub/a": b""}
    lines = "".join(
        f"{name}\0{len(data)}\0{hashlib.sha256(data).hexdigest()}\n" for name, data in sorted(files.items())
    )
    assert digest("one", files) == digest("two", files) == hashlib.sha256(lines.encode()).hexdigest()
    assert (
        len({digest("three", files | {"b.distcp": b"Weights"}), digest("four", {"c": b"weights"}), digest("two", {})})
        == 3
    )

"""What operators ask, answered by a real engine on two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families


def metrics_of(server: Any) -> dict[str, float]:
    samples = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            phase = sample.labels.get("phase", "")
            samples[f"{sample.name.removeprefix('megaserve:')}{phase and f' {phase}'}"] = sample.value
    return samples


def test_flushing_forgets_cached_prompts(real_server: Any) -> None:
    text = "the quick brown fox jumps over the lazy dog " * 4

    def cached() -> int:
        tokens: int = real_server.generate(text).json()["meta_info"]["cached_tokens"]
        return tokens

    cached()
    assert cached() > 0
    assert real_server.client.post("/flush_cache").json() == {"flushed": True}
    assert cached() == 0
    assert cached() > 0


def test_metrics_are_the_engines(real_server: Any) -> None:
    before = metrics_of(real_server)
    real_server.generate("one two three", sampling_params={"max_new_tokens": 5})
    real_server.wait(lambda: real_server.stats()["num_free_blocks"] == real_server.stats()["num_blocks"])
    after = metrics_of(real_server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["generation_tokens_total"] == 5
    assert grown["step_seconds_count prefill"] >= 1
    assert grown["step_seconds_count decode"] == 4
    assert grown["batch_size_sum"] == grown["engine_steps_total"] >= 5
    assert grown["iteration_tokens_sum"] == grown["prompt_tokens_total"] - grown["prefix_cache_hits_total"] + 4
    assert (after["kv_blocks_used"], after["kv_cache_usage_perc"]) == (0, 0)
    assert after["kv_blocks_free"] == after["kv_blocks"] > 0


def test_each_rank_writes_a_trace_of_the_steps_asked_for(real_server: Any) -> None:
    reply = real_server.client.post("/start_profile", json={"num_steps": 3})
    assert reply.json() == {"profiling": True, "num_steps": 3, "directory": str(real_server.profiles)}
    assert real_server.client.post("/start_profile").status_code == 409
    real_server.generate(sampling_params={"max_new_tokens": 6})
    traces = real_server.wait(lambda: len(found := sorted(real_server.profiles.glob("*.json"))) == 2 and found)
    assert {path.name.partition("-rank")[2] for path in traces} == {"0.trace.json", "1.trace.json"}
    real_server.wait(lambda: not real_server.stats()["is_profiling"])
    real_server.assert_well()  # both have written theirs: they step together again
    for path in traces:
        events = json.loads(Path(path).read_text())["traceEvents"]
        assert any(event.get("cat") == "cpu_op" for event in events)
    assert real_server.client.post("/stop_profile").status_code == 409


def test_a_profile_can_be_cut_short(real_server: Any) -> None:
    before = set(real_server.profiles.glob("*.json"))
    real_server.client.post("/start_profile", json={"num_steps": 1000})
    real_server.generate()
    assert real_server.client.post("/stop_profile").status_code == 200
    real_server.assert_well()
    assert len(set(real_server.profiles.glob("*.json")) - before) == 2


def test_the_digest_is_computed_in_the_background(real_server: Any) -> None:
    checkpoint = real_server.wait(
        lambda: (found := real_server.client.get("/server_info").json()["checkpoint"])["digest"] and found
    )
    assert len(checkpoint["digest"]) == 64
    assert Path(checkpoint["path"]).is_dir()


def test_a_probe_through_the_engine(real_server: Any) -> None:
    assert real_server.client.get("/health_generate").status_code == 200


def test_what_is_printed_about_arguments_holds_no_key(real_server: Any) -> None:
    printed = real_server.log.read_text()
    assert '"arg": "admin_api_key", "value": "(secret)"' in printed
    assert "admin-key-1" not in printed

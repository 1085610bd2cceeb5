"""A server that fails in every way: the table converges to the fault-free one, and lasting failures get their class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.cli import main

TRANSIENT = ["429", "500", "503", "hang", "half_body", "reset", "not_json", "null_content", "abort"]


def evaluate(url: str, data: Path, run: Path, *more: str) -> int:
    return main(["--server", url, "--data", str(data), "--output", str(run), "--timeout", "0.7", "--no-report", *more])


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted((run / "log").iterdir()) for line in path.read_bytes().splitlines()]


def test_transient_faults_leave_no_trace_in_the_table(start_stub, mcq_file, tmp_path):
    data, faulty, calm = mcq_file(100), tmp_path / "faulty", tmp_path / "calm"
    stub = start_stub(faults=TRANSIENT, seed=5)

    assert evaluate(stub.url, data, faulty) == 0
    assert evaluate(start_stub().url, data, calm) == 0

    for name in ("export/results.tsv", "scores/mcq.jsonl"):
        assert (faulty / name).read_bytes() == (calm / name).read_bytes()
    met = {status for line in lines_of(faulty) for status in line["failed_attempts"]}
    assert met == {
        "rate_limited",
        "server_5xx",
        "overloaded",
        "timeout",
        "connection",
        "malformed_response",
        "cancelled",
    }
    assert summary_of(faulty)["failed"] == 0


def test_raw_completions_survive_the_same_faults(start_stub, write_jsonl, tmp_path):
    rows = [{"id": n, "prompt": f"Number {n} ECHO: {n}", "answer": str(n)} for n in range(30)]
    stub, run = start_stub(faults=TRANSIENT, seed=6), tmp_path / "run"

    assert evaluate(stub.url, write_jsonl(rows), run) == 0

    assert summary_of(run)["scores"]["exact_match"]["mean"] == 1.0


@pytest.mark.parametrize(
    ("fault", "status", "requests", "exit_status"),
    [
        ("400", "bad_request", 1, 0),
        ("context", "context_overflow", 1, 0),
        ("empty", "empty", 1, 0),
        ("500", "server_5xx", 2, 4),
        ("hang", "timeout", 2, 4),
        ("null_content", "malformed_response", 2, 4),
        ("half_body", "connection", 2, 4),
    ],
)
def test_lasting_faults_are_typed_counted_and_no_answers(
    start_stub, mcq_file, tmp_path, fault, status, requests, exit_status
):
    stub, run = start_stub(always=fault), tmp_path / "run"

    assert evaluate(stub.url, mcq_file(2), run, "--max-attempts", "2") == exit_status

    assert len(stub.asked()) == 2 * requests
    lines = lines_of(run)
    assert {(line["status"], line["attempt"], line["answer"]) for line in lines} == {(status, requests, None)}
    assert all(line["error"]["message"] for line in lines)
    summary = summary_of(run)
    assert (summary["done"], summary["failed"], summary["failed_by_class"]) == (0, 2, {status: 2})
    assert summary["status"] == ("complete" if exit_status == 0 else "incomplete")
    score = summary["scores"]["mcq"]
    assert (score["mean"], score["n"], score["mean_answered"], score["n_answered"]) == (0.0, 2, None, 0)
    table = (run / "export" / "results.tsv").read_text().splitlines()
    assert all(row.endswith("\t") for row in table[1:])


def test_failures_are_asked_again_on_the_next_run_as_told(start_stub, mcq_file, tmp_path):
    """`always` lives in the stub, so the second stub is the server after its repair, on another port."""
    broken, repaired, data = start_stub(always="500"), start_stub(), mcq_file(3)
    refusing = start_stub(always="400")
    run, other = tmp_path / "run", tmp_path / "other"

    assert evaluate(broken.url, data, run, "--max-attempts", "1") == 4
    assert evaluate(repaired.url, data, run, "--no-retry-failed") == 4
    assert not repaired.asked()
    assert evaluate(repaired.url, data, run) == 0
    assert {line["attempt"] for line in lines_of(run) if line["status"] != "server_5xx"} == {2}
    assert summary_of(run)["done"] == 3

    assert evaluate(refusing.url, data, other) == 0
    assert evaluate(repaired.url, data, other) == 0
    assert summary_of(other)["failed"] == 3, "a refusal is final unless one insists"
    assert evaluate(repaired.url, data, other, "--retry-failed") == 0
    assert summary_of(other)["done"] == 3


def test_a_question_that_hangs_takes_no_other_with_it(start_stub, mcq_file, tmp_path):
    """Each request has its own time, from its dispatch on; the others were answered long before."""
    options = "A. 4\nB. 5\nC. 6\nD. 7\nReply with the letter of the correct option only."
    hung = f"Question: What is 3 plus one?\nOptions:\n{options}"
    stub, run = start_stub(always_for={hung: "hang"}), tmp_path / "run"

    assert evaluate(stub.url, mcq_file(40), run, "--concurrency", "2", "--max-attempts", "1") == 4

    assert {line["item_id"]: line["status"] for line in lines_of(run) if line["error"]} == {"q3": "timeout"}
    assert summary_of(run)["done"] == 39


def test_thinking_that_used_the_budget_is_a_class_of_its_own_and_final(start_stub, mcq_file, tmp_path):
    stub, run = start_stub(always="null_length"), tmp_path / "run"

    assert evaluate(stub.url, mcq_file(3), run) == 0

    assert len(stub.asked()) == 3
    assert summary_of(run)["failed_by_class"] == {"no_answer_length": 3}


def test_restarting_server_is_waited_for(start_stub, mcq_file, tmp_path):
    stub, run = start_stub(restart_after=20, restart_seconds=1.5, latency=0.01), tmp_path / "run"

    assert evaluate(stub.url, mcq_file(60), run, "--concurrency", "8") == 0

    assert summary_of(run)["done"] == 60
    assert len(stub.asked()) <= 60 + 8, "while it restarts it is probed, not asked"


def test_server_that_never_comes_back_ends_the_run_resumable(start_stub, mcq_file, tmp_path, capsys):
    stub, run = start_stub(restart_after=10, restart_seconds=3600.0, latency=0.01), tmp_path / "run"

    assert evaluate(stub.url, mcq_file(30), run, "--concurrency", "4", "--server-wait", "0.5") == 4

    assert "was not ready for 0.5 seconds" in capsys.readouterr().err
    summary = summary_of(run)
    assert summary["failed"] == 0, "a server that went away says nothing about the questions"
    assert 0 < summary["done"] < 30


def test_refused_client_stops_the_run_at_once(start_stub, mcq_file, tmp_path, capsys):
    stub, run = start_stub(always="401"), tmp_path / "run"

    assert evaluate(stub.url, mcq_file(50), run, "--concurrency", "2") == 5

    assert "refuses this client" in capsys.readouterr().err
    assert len(stub.asked()) <= 2
    assert summary_of(run)["failed"] == 0

"""SIGKILL and SIGINT at random moments: the log stays whole, nothing is asked twice, the table comes out the same."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from evaluation.cli import main
from evaluation.run_directory.log_reader import read_logs

SEED = 20
KILLS = 5
ROWS = 120
DEADLINE_SECONDS = 60.0


def client(url: str, data: Path, run: Path, concurrency: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "evaluation", "--server", url, "--data", str(data), "--output", str(run)]
    return subprocess.Popen([*command, "--no-report", "--concurrency", str(concurrency)], stderr=subprocess.DEVNULL)


def count_lines(run: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (run / "log").glob("*.jsonl"))


def end_after(process: subprocess.Popen[bytes], run: Path, lines: int, number: signal.Signals) -> int:
    """Send a signal once the log has so many lines; the exit status."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while count_lines(run) < lines:
        assert process.poll() is None, "the client ended before it was to be ended"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    return process.wait(timeout=DEADLINE_SECONDS)


def test_five_kills_lose_nothing_and_ask_nothing_twice(start_stub, mcq_file, tmp_path):
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    data, run, whole = mcq_file(ROWS), tmp_path / "run", tmp_path / "whole"
    stub = start_stub(latency=0.03)
    in_flight_at_kills = 0
    for kill in range(KILLS):
        logged, concurrency = count_lines(run), draw.choice((1, 2, 3, 8))
        in_log = {record.item_id for record in read_logs(run / "log").records}
        asked_before = len(stub.asked())
        target = logged + draw.randint(1, (ROWS - logged) // (KILLS + 1 - kill))
        process = client(stub.url, data, run, concurrency)
        assert end_after(process, run, target, signal.SIGKILL) == -signal.SIGKILL
        assert logged < count_lines(run) < ROWS, "a kill counts when the log grew and is unfinished"
        asked = stub.asked()[asked_before:]
        assert not in_log & {item_id_of(entry["question"]) for entry in asked}, "what has an answer is not asked again"
        new_answers = len(read_logs(run / "log").records) - len(in_log)
        in_flight_at_kills += len(asked) - new_answers
        assert len(asked) - new_answers <= concurrency

    assert client(stub.url, data, run, 64).wait(timeout=DEADLINE_SECONDS) == 0

    assert len(stub.asked()) == ROWS + in_flight_at_kills
    contents = read_logs(run / "log")
    assert max(Counter(record.key for record in contents.records).values()) == 1
    assert len(list((run / "log").iterdir())) == KILLS + 1
    assert main(["--server", stub.url, "--data", str(data), "--output", str(whole)]) == 0
    for name in ("export/results.tsv", "scores/mcq.jsonl"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    scores = [json.loads((path / "summary.json").read_text())["scores"] for path in (run, whole)]
    assert scores[0] == scores[1]


def item_id_of(question: str) -> str:
    number = question.removeprefix("Question: What is ").split(" ", 1)[0]
    return f"q{number}"


def test_interrupt_leaves_a_whole_log_and_a_summary(start_stub, mcq_file, tmp_path):
    data, run = mcq_file(60), tmp_path / "run"
    stub = start_stub(latency=0.05)

    assert end_after(client(stub.url, data, run, 4), run, 9, signal.SIGINT) == 130

    contents = read_logs(run / "log")
    assert not contents.damage
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "incomplete"
    assert summary["done"] == len(contents.records) == 60 - summary["remaining"]
    assert main(["--server", stub.url, "--data", str(data), "--output", str(run)]) == 0
    assert len(stub.asked()) <= 60 + 4


def test_simultaneous_clients_share_a_run(start_stub, mcq_file, tmp_path):
    """Answers come only while both clients wait for four each, so both certainly ask and write at the same time."""
    data, run, whole = mcq_file(40), tmp_path / "run", tmp_path / "whole"
    stub = start_stub(barrier=8)

    clients = [client(stub.url, data, run, 4) for _ in range(2)]
    assert [process.wait(timeout=DEADLINE_SECONDS) for process in clients] == [0, 0]

    assert len(list((run / "log").iterdir())) == 2
    assert not read_logs(run / "log").damage
    assert main(["--merge", str(run)]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["done"], summary["log"]["duplicates"]) == (40, 40)
    main(["--server", start_stub().url, "--data", str(data), "--output", str(whole)])
    assert (run / "export/results.tsv").read_bytes() == (whole / "export/results.tsv").read_bytes()

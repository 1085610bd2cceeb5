"""SIGKILL of all clients at random moments against a real server, going on with other numbers of workers each time."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from evaluation.cli import main
from evaluation.run_directory.log_reader import read_logs

SEED = 41
WORKERS = (1, 2, 3, 8)
CONCURRENCY = 2
DEADLINE_SECONDS = 120.0
DEMO = Path(__file__).parents[3] / "examples" / "demo_vlm"


def start_workers(count, flags):
    """`count` ranks of the command, as torchrun would start them."""
    command = [sys.executable, "-m", "evaluation", *flags, "--concurrency", str(CONCURRENCY)]
    ranks = [{"RANK": str(rank), "WORLD_SIZE": str(count)} for rank in range(count)]
    return [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **rank})
        for rank in ranks
    ]


def count_lines(run: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (run / "log").glob("*.jsonl"))


def kill_after(workers, run, lines):
    """SIGKILL to all at once when the log has so many lines, or when they have ended before."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while count_lines(run) < lines and any(worker.poll() is None for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.wait()


def settled(server):
    """The engine's count of ended requests once it is idle: the dead clients' requests are aborted."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (stats := server.stats())["num_running"] or stats["num_waiting"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return server.num_ended()


def one_answer_per_key(run):
    records = read_logs(run / "log").records
    assert max(Counter(record.key for record in records).values()) == 1
    return {
        record.key: (record.status, record.text, record.answer, record.finish_reason, record.usage)
        for record in records
    }


def check_kills(server, asking, rows, kills, folder):
    """`kills` times all workers are killed half way, then one goes on to the end. asking: flags of the questions."""
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    run, whole = folder / "run", folder / "whole"
    flags = ["--server", server.url, *asking, "--no-report"]
    before = settled(server)
    may_be_twice = counted = 0
    numbers = [draw.choice(WORKERS) for _ in range(kills)]
    while counted < kills:
        workers, logged = numbers[counted], count_lines(run)
        target = logged + draw.randint(1, max(1, (rows - logged) // (kills + 1 - counted)))
        kill_after(start_workers(workers, [*flags, "--output", str(run)]), run, target)
        assert count_lines(run) < rows, "the run ended before it was killed; there are too few rows for so many kills"
        counted += count_lines(run) > logged
        may_be_twice += workers * CONCURRENCY

    assert main([*flags, "--output", str(run)]) == 0
    asked = settled(server) - before
    assert rows <= asked <= rows + may_be_twice
    assert main([*flags, "--output", str(whole)]) == 0

    assert one_answer_per_key(run) == one_answer_per_key(whole)
    names = [path.relative_to(whole) for path in (whole / "scores").iterdir()]
    assert names
    for name in (Path("export/results.tsv"), *names):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    scores = [json.loads((path / "summary.json").read_text())["scores"] for path in (run, whole)]
    assert scores[0] == scores[1]


def test_five_kills_lose_nothing_and_ask_nothing_twice(vlm_server, picture_questions, tmp_path):
    check_kills(vlm_server, ["--data", str(picture_questions(100)), "--max-new-tokens", "24"], 100, 5, tmp_path)


@pytest.mark.proof
@pytest.mark.timeout(1500)
def test_twenty_kills_of_an_evaluation_of_the_demo_model(serve_checkpoint, tmp_path):
    flags = ["--data", "easy-vqa:test", "--limit", "1500", "--max-new-tokens", "4"]
    with serve_checkpoint(DEMO, "--dtype", "fp32", "--threads", "1") as server:
        check_kills(server, flags, 1500, 20, tmp_path)

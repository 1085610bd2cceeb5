"""Several processes on one run: each asks its part, none waits for another, and any number of them goes on."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest

from evaluation.cli import main
from evaluation.errors import SetupError
from evaluation.run_directory.atomic import only_process
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.log_reader import read_logs
from evaluation.shard import Shard


def ranks_of(start_client, url, data, run, size, *more):
    return [
        start_client(url, data, run, *more, environment={"RANK": str(rank), "WORLD_SIZE": str(size)})
        for rank in range(size)
    ]


def test_each_part_once_and_the_whole_the_same(start_stub, mcq_file, tmp_path, start_client):
    stub, data, run, whole = start_stub(), mcq_file(60), tmp_path / "run", tmp_path / "whole"

    assert [client.process.wait(60) for client in ranks_of(start_client, stub.url, data, run, 3)] == [0, 0, 0]

    assert max(Counter(entry["question"] for entry in stub.asked()).values()) == 1
    assert len(list((run / "log").iterdir())) == 3
    assert main(["--merge", str(run)]) == 0
    assert main(["--server", stub.url, "--data", str(data), "--output", str(whole)]) == 0
    for name in ("export/results.tsv", "scores/mcq.jsonl"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    scores = [json.loads((path / "summary.json").read_text())["scores"] for path in (run, whole)]
    assert scores[0] == scores[1]
    names = [path.name for path in run.rglob("*")]
    assert not any("rank" in name for name in names)


def test_lost_rank_is_made_up_for_by_any_number(start_stub, mcq_file, tmp_path, start_client):
    stub, data, run = start_stub(), mcq_file(40), tmp_path / "run"
    only = start_client(stub.url, data, run, environment={"RANK": "1", "WORLD_SIZE": "3"})
    assert only.process.wait(60) == 0, "a rank answers for its own part"
    assert main(["--merge", str(run)]) == 4
    part = len(stub.asked())
    assert 0 < part < 40

    assert [client.process.wait(60) for client in ranks_of(start_client, stub.url, data, run, 2)] == [0, 0]

    assert len(stub.asked()) == 40
    assert main(["--merge", str(run)]) == 0


def test_waiting_for_the_others_ends(start_stub, mcq_file, tmp_path, start_client, monkeypatch, capsys):
    stub, data, run = start_stub(), mcq_file(20), tmp_path / "run"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    command = ["--server", stub.url, "--data", str(data), "--output", str(run)]
    assert main([*command, "--wait-for-ranks", "0.3"]) == 4
    assert "of other ranks have no outcome, and none came for 0.3 seconds" in capsys.readouterr().err

    other = start_client(stub.url, data, run, environment={"RANK": "1", "WORLD_SIZE": "2"})
    assert main([*command, "--wait-for-ranks", "60"]) == 0
    assert json.loads((run / "summary.json").read_text())["done"] == 20
    assert other.process.wait(60) == 0
    assert len(read_logs(run / "log").records) == 20


@pytest.mark.parametrize(
    ("environment", "shard"),
    [
        ({}, Shard(0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "3"}, Shard(2, 3)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, Shard(1, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Shard(0, 1)),
        ({"RANK": "0"}, Shard(0, 1)),
    ],
)
def test_environment(environment, shard):
    assert Shard.of_environment(environment) == shard


@pytest.mark.parametrize(("rank", "size"), [("3", "3"), ("-1", "2"), ("0", "0"), ("one", "2")])
def test_environment_that_makes_no_sense(rank, size):
    with pytest.raises(SetupError, match="name no part of a whole"):
        Shard.of_environment({"RANK": rank, "WORLD_SIZE": size})


def test_parts_are_even_and_complete():
    ids = [f"item {number}" for number in range(10_000)]
    counts = [sum(map(Shard(rank, 8).holds, ids)) for rank in range(8)]
    assert sum(counts) == 10_000
    assert max(counts) < 1.15 * min(counts)


def test_slow_rank_does_not_put_older_results_over_newer_ones(start_stub, mcq_file, tmp_path):
    """It comes to its results while another writes: what it writes is what the log holds when its turn comes."""
    run = tmp_path / "run"
    assert main(["--server", start_stub().url, "--data", str(mcq_file(8)), "--output", str(run)]) == 0
    (log,) = (run / "log").iterdir()
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:5]))
    slow = threading.Thread(target=main, args=[["--merge", str(run)]])

    with only_process(RunLayout(run).results_lock):
        slow.start()
        slow.join(0.5)
        assert slow.is_alive()
        log.write_bytes(b"".join(lines))
    slow.join(60)

    assert json.loads((run / "summary.json").read_text())["status"] == "complete"
    assert (run / "report.html").exists()

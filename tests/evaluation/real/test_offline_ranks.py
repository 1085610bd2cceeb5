"""Offline replicas of two tensor-parallel ranks each, and a rank that dies half way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.proof


@pytest.fixture
def flags(picture_questions, vlm_checkpoint, engine_flags):
    data = ["--data", str(picture_questions(60)), "--max-new-tokens", "64", "--no-report"]
    return [*data, "--offline", "--load", str(vlm_checkpoint), *engine_flags]


@pytest.fixture
def alone(flags, tmp_path, run_evaluation):
    """The table of one replica of one rank."""
    done = run_evaluation(*flags, "--output", str(tmp_path / "alone"))
    assert done.returncode == 0, done.stderr
    return (tmp_path / "alone" / "export/results.tsv").read_bytes()


def test_two_replicas_of_two_ranks(flags, alone, tmp_path, run_evaluation):
    run = tmp_path / "run"

    done = run_evaluation(*flags, "--tensor-model-parallel-size", "2", "--output", str(run), ranks=4)

    assert done.returncode == 0, done.stderr
    assert "W = 2" in done.stdout
    assert (run / "export/results.tsv").read_bytes() == alone


def test_a_number_of_ranks_that_makes_no_replicas(flags, tmp_path, run_evaluation):
    done = run_evaluation(*flags, "--tensor-model-parallel-size", "2", "--output", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "1 ranks are no whole number of replicas of --tensor-model-parallel-size 2" in done.stderr


def test_a_rank_that_is_killed_ends_the_others_and_loses_nothing(flags, alone, tmp_path, run_evaluation):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "evaluation", *flags]
    job = subprocess.Popen([*command, "--output", str(run)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while count_lines(run) < 5:
            assert job.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(rank_of(job, 1), signal.SIGKILL)
        assert job.wait(120) != 0
    finally:
        job.kill()
    logged = count_lines(run)
    assert 5 <= logged < 60

    done = run_evaluation(*flags, "--output", str(run))

    assert done.returncode == 0, done.stderr
    assert f"Resuming: {logged} of 60 questions have their outcome already" in done.stderr
    assert (run / "export/results.tsv").read_bytes() == alone


def rank_of(job, rank):
    """Process id of a rank."""
    (pid,) = [child.pid for child in psutil.Process(job.pid).children() if child.environ().get("RANK") == str(rank)]
    return pid


def count_lines(run):
    return sum(path.read_bytes().count(b"\n") for path in (run / "log").glob("*.jsonl"))

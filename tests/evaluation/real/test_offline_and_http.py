"""The same checkpoint asked in this process, by two replicas, and over HTTP: the same answers, row by row, in fp32."""

from __future__ import annotations

import json
import re

import pytest

ROWS = 40
# What a record may differ in: when it was asked, and by whom it was answered.
TIMES = {"started_at", "finished_at", "seconds", "server_times", "request_id", "crc"}


def outcomes(run):
    """By key, without times."""
    lines = [json.loads(line) for path in (run / "log").iterdir() for line in path.read_text().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines)
    return {line["key"]: {name: value for name, value in line.items() if name not in TIMES} for line in lines}


@pytest.fixture(scope="module")
def over_http(vlm_server, picture_questions, tmp_path_factory):
    """A run over HTTP, 64 questions under way."""
    from evaluation.cli import main

    run = tmp_path_factory.mktemp("http") / "run"
    data = str(picture_questions(ROWS))
    flags = ["--data", data, "--max-new-tokens", "12", "--no-report", "--output", str(run)]
    assert main(["--server", vlm_server.url, *flags, "--concurrency", "64"]) == 0
    return run


@pytest.fixture
def flags(picture_questions, vlm_checkpoint, engine_flags):
    data = ["--data", str(picture_questions(ROWS)), "--max-new-tokens", "12", "--no-report"]
    return data, [*data, "--offline", "--load", str(vlm_checkpoint), *engine_flags]


def test_one_at_a_time_over_http(over_http, vlm_server, flags, tmp_path, run_evaluation):
    run = tmp_path / "run"

    done = run_evaluation("--server", vlm_server.url, *flags[0], "--concurrency", "1", "--output", str(run))

    assert done.returncode == 0, done.stderr
    assert outcomes(run) == outcomes(over_http)
    assert len({one["text"] for one in outcomes(run).values()}) > ROWS / 2


def test_in_this_process(over_http, flags, tmp_path, run_evaluation):
    run = tmp_path / "run"

    done = run_evaluation(*flags[1], "--output", str(run))

    assert done.returncode == 0, done.stderr
    assert outcomes(run) == outcomes(over_http)
    assert (run / "export/results.tsv").read_bytes() == (over_http / "export/results.tsv").read_bytes()
    assert json.loads((run / "summary.json").read_text())["offline"]["replicas"] == 1


def test_two_replicas_with_padding_go_on_with_a_run_over_http(over_http, vlm_server, flags, tmp_path, run_evaluation):
    """Eleven questions were answered over HTTP; 29 are left for two ranks, so one of them is given one more."""
    run = tmp_path / "run"
    begun = run_evaluation("--server", vlm_server.url, *flags[0], "--limit", "11", "--output", str(run))
    assert begun.returncode == 0, begun.stderr

    done = run_evaluation(*flags[1], "--pad-requests", "--output", str(run), ranks=2)

    assert done.returncode == 0, done.stderr
    assert outcomes(run) == outcomes(over_http)
    assert (run / "export/results.tsv").read_bytes() == (over_http / "export/results.tsv").read_bytes()
    timing = json.loads((run / "summary.json").read_text())["offline"]
    assert [one["questions"] for one in timing["ranks"]] == [15, 14]
    assert re.search(r"Replicas +W = 2, serial .* speed-up .* by Amdahl's law", done.stdout)
    assert re.search(r"Barrier +longest wait .* slowest less fastest rank", done.stdout)
    assert done.stdout.count("Status     complete") == 1, "rank 0 alone prints the summary"


@pytest.mark.proof
def test_a_checkpoint_that_is_none_is_one_clear_line(tmp_path, flags, run_evaluation):
    (tmp_path / "empty").mkdir()

    done = run_evaluation("--offline", "--load", str(tmp_path / "empty"), *flags[0], "--output", str(tmp_path / "run"))

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "empty") in done.stderr
    assert not (tmp_path / "run").exists()

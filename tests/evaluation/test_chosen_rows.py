"""--ids and --where ask some rows only; what is not chosen stays as it is."""

from __future__ import annotations

import json

import pytest

from evaluation.cli import main


def evaluate(url, data, run, *more):
    return main(["--server", url, "--data", str(data), "--output", str(run), "--no-report", *more])


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def number_of(entry):
    return entry["question"].removeprefix("Question: What is ").split(" ", 1)[0]


def test_ids_of_the_command_line_or_a_file(start_stub, mcq_file, tmp_path):
    stub, data, run = start_stub(), mcq_file(10), tmp_path / "run"
    (tmp_path / "ids").write_text("q7\n\nq9\n")

    assert evaluate(stub.url, data, run, "--ids", "q3, q1") == 4
    assert {number_of(entry) for entry in stub.asked()} == {"1", "3"}
    assert evaluate(stub.url, data, run, "--ids", f"@{tmp_path / 'ids'}") == 4
    assert {number_of(entry) for entry in stub.asked()} == {"1", "3", "7", "9"}
    coverage = summary_of(run)["coverage"]
    assert (coverage["expected"], coverage["present"], coverage["missing"]) == (
        10, 4, ["q0", "q2", "q4", "q5", "q6", "q8"]
    )  # fmt: skip
    assert evaluate(stub.url, data, run) == 0
    assert len(stub.asked()) == 10


def test_rows_of_a_status_are_asked_again_whatever_it_is(start_stub, mcq_file, tmp_path):
    refusing, good, data, run = start_stub(always="400"), start_stub(), mcq_file(6), tmp_path / "run"
    assert evaluate(refusing.url, data, run, "--limit", "2") == 0
    assert evaluate(good.url, data, run, "--where", "status=missing") == 0
    assert (len(good.asked()), summary_of(run)["failed"]) == (4, 2)

    assert evaluate(good.url, data, run, "--where", "status=timeout") == 0
    assert len(good.asked()) == 4
    assert evaluate(good.url, data, run, "--where", "status=bad_request", "--where", "category=sums") == 0
    assert (len(good.asked()), summary_of(run)["failed"]) == (5, 1)
    assert evaluate(good.url, data, run, "--where", "status=failed") == 0
    assert (len(good.asked()), summary_of(run)["failed"]) == (6, 0)
    assert evaluate(good.url, data, run, "--where", "status=answered", "--ids", "q0") == 0
    assert len(good.asked()) == 6, "an answer is never asked for again"


def test_ignore_failed_leaves_failed_rows_out(start_stub, mcq_file, tmp_path):
    broken, good, data, run = start_stub(always="500"), start_stub(), mcq_file(2), tmp_path / "run"
    assert evaluate(broken.url, data, run, "--max-attempts", "1") == 4
    assert evaluate(good.url, data, run, "--ignore-failed") == 4
    assert not good.asked()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--ids", "q1,q77"], "no row has the id 'q77'"),
        (["--where", "status=bad"], "the statuses are answered, failed, missing, ok"),
        (["--where", "color=red"], "no column 'color'"),
    ],
)
def test_choices_that_name_nothing(start_stub, mcq_file, tmp_path, capsys, flags, reason):
    assert evaluate(start_stub().url, mcq_file(3), tmp_path / "run", *flags) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

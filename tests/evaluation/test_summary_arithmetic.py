"""Means, standard errors and rates, against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from evaluation.run_directory.record import Record
from evaluation.score_statistics import Observation, clustered_stderr, describe, wilson_interval
from evaluation.status import Status
from evaluation.summary import busy_seconds


def observe(score: float, cluster: str, group: str | None = None, *, is_answered: bool = True) -> Observation:
    return Observation(score, is_answered, cluster, group or cluster)


def test_independent_rows():
    score = describe([observe(s, str(n)) for n, s in enumerate([1.0, 0.0, 0.0, 0.0])])
    assert (score["mean"], score["n"], score["mean_answered"], score["n_answered"]) == (0.25, 4, 0.25, 4)
    assert score["stderr"] == pytest.approx(math.sqrt(0.25 / 4))


def test_failures_count_as_wrong_and_are_left_out_of_the_second_mean():
    rows = [observe(1.0, "a"), observe(0.0, "b"), observe(0.0, "c", is_answered=False), observe(1.0, "d")]
    score = describe(rows)
    assert (score["mean"], score["n"]) == (0.5, 4)
    assert (score["mean_answered"], score["n_answered"]) == (pytest.approx(2 / 3), 3)
    assert describe([observe(0.0, "a", is_answered=False)])["mean_answered"] is None


def test_copies_of_a_row_in_one_cluster_add_nothing():
    """Four clusters of five equal scores know no more than four rows."""
    four = [1.0, 0.0, 1.0, 0.0]
    many = [score for score in four for _ in range(5)]
    assert clustered_stderr(many, [str(n // 5) for n in range(20)]) == pytest.approx(
        clustered_stderr(four, list("abcd"))
    )
    assert clustered_stderr([1.0, 0.0], ["a", "a"]) == 0.0


def test_group_is_as_right_as_its_least_right_row():
    rows = [observe(1.0, "a", "g"), observe(0.0, "b", "g"), observe(1.0, "c", "h"), observe(1.0, "d", "h")]
    assert (describe(rows)["mean"], describe(rows)["n"]) == (0.5, 2)


def test_interval():
    """81 of 263: the interval of Newcombe 1998, Statistics in Medicine 17, table I, Wilson without correction."""
    mean = 81 / 263
    low, high = wilson_interval(mean, math.sqrt(mean * (1 - mean) / 263), 263)
    assert (low, high) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))


def test_interval_has_a_width_when_all_are_right():
    low, high = wilson_interval(1.0, 0.0, 29)
    assert (low, high) == (pytest.approx(0.8830, abs=5e-5), 1.0)


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([], 0.0),
        ([(1, 3)], 2.0),
        ([(1, 3), (2, 5)], 4.0),
        ([(1, 9), (2, 3), (4, 5)], 8.0),
        ([(100, 101), (1, 3)], 3.0),
    ],
)
def test_pauses_do_not_count_and_overlaps_count_once(intervals, seconds):
    records = [
        Record(
            key="k", item_id="i", row=1, status=Status.OK, attempt=1, text="", answer="", started_at=a, finished_at=b
        )
        for a, b in intervals
    ]
    assert busy_seconds(records) == seconds

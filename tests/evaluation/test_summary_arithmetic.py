"""Means, standard errors and rates, against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from evaluation.run_directory.record import Record
from evaluation.scoring import aggregate
from evaluation.status import Status
from evaluation.summary import busy_seconds


def test_aggregate():
    assert aggregate([1.0]) == {"mean": 1.0, "stderr": 0.0, "n": 1}
    score = aggregate([1.0, 0.0, 0.0, 0.0])
    assert score["mean"] == 0.25
    assert score["stderr"] == pytest.approx(math.sqrt(0.25 / 4))
    assert score["n"] == 4


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

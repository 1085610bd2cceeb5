"""Who asks what, and what that gained, against values worked out by hand."""

from __future__ import annotations

import pytest

from evaluation.offline.shares import share_of
from evaluation.offline.timing import RankTime, session_timing, timing_lines
from evaluation.plan import Question
from evaluation.run_directory.run_item import RunItem


def questions(count):
    return [Question(RunItem(key=str(n), item_id=str(n), row=n, columns={}), None) for n in range(count)]


def names(share):
    return [f"{question.item.key}{'+' if question.is_padding else ''}" for question in share]


def test_dealt_out_in_turn():
    assert [names(share_of(questions(7), r, 3, pad=False)) for r in range(3)] == [
        ["0", "3", "6"],
        ["1", "4"],
        ["2", "5"],
    ]


def test_padded_to_equal_numbers():
    assert [names(share_of(questions(7), r, 3, pad=True)) for r in range(3)] == [
        ["0", "3", "6"],
        ["1", "4", "4+"],
        ["2", "5", "5+"],
    ]
    assert [names(share_of(questions(1), r, 3, pad=True)) for r in range(3)] == [["0"], ["0+"], ["0+"]]
    assert [names(share_of(questions(6), r, 3, pad=True)) for r in range(3)] == [["0", "3"], ["1", "4"], ["2", "5"]]


def test_speed_up_of_two_replicas():
    """10 s serial, 30 s and 20 s of inference: 60 s on one replica, 40 s here, 35 s had they been even."""
    times = [
        RankTime(rank=0, questions=3, inference_seconds=30.0, barrier_wait_seconds=0.0),
        RankTime(rank=1, questions=3, inference_seconds=20.0, barrier_wait_seconds=10.0),
    ]
    timing = session_timing(times, wall_seconds=40.0)
    assert timing["serial_seconds"] == 10.0
    assert timing["measured_speed_up"] == pytest.approx(60 / 40)
    assert timing["predicted_speed_up"] == pytest.approx(60 / 35)
    assert (timing["max_minus_min_seconds"], timing["longest_barrier_wait_seconds"]) == (10.0, 10.0)
    assert timing_lines(timing)[-2:] == [
        "Replicas   W = 2, serial 10.00 s of 40.00 s; speed-up 1.50, by Amdahl's law 1.71",
        "Barrier    longest wait 10.00 s; slowest less fastest rank 10.00 s",
    ]


def test_one_replica_gains_nothing():
    timing = session_timing(
        [RankTime(rank=0, questions=1, inference_seconds=5.0, barrier_wait_seconds=0.0)], wall_seconds=6.0
    )
    assert (timing["predicted_speed_up"], timing["measured_speed_up"]) == (1.0, 1.0)

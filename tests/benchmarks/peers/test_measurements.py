"""Ratios are paired by round, and above 1 whenever ours is better."""

from __future__ import annotations

import pytest

from benchmarks.peers import measurements as m
from benchmarks.peers.measurements import Measurements, times_better


def test_more_is_better_of_rates_and_less_of_times() -> None:
    assert times_better(m.OFFLINE, [200.0], [100.0])["median"] == 2
    assert times_better(m.DECODE, [5.0], [10.0])["median"] == 2


def test_a_round_is_compared_with_the_same_round() -> None:
    # The machine was half as fast in the second round; both were.
    assert times_better(m.OFFLINE, [100, 50, 110], [80, 40, 88]) == pytest.approx(
        {"median": 1.25, "min": 1.25, "max": 1.25}
    )


def test_what_was_not_measured_is_not_there_and_ours_is_not_compared_with_itself() -> None:
    results = Measurements()
    for name, rates in ((m.OURS, (10.0, 30.0, 20.0)), ("other", (10.0, 10.0, 40.0))):
        for rate in rates:
            results.add(m.OFFLINE, name, rate)
    described = results.describe()
    assert described.keys() == {m.OFFLINE.name}
    assert described[m.OFFLINE.name][m.OURS] == {"median": 20.0, "values": [10.0, 30.0, 20.0]}
    assert described[m.OFFLINE.name]["other"]["times_better"] == {"median": 1.0, "min": 0.5, "max": 3.0}

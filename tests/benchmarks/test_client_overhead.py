"""The client's overhead is measured on real work: every question answered, in figures that can be."""

from __future__ import annotations

import pytest

from benchmarks.client_overhead import measure
from benchmarks.errors import MeasurementError


def test_a_small_run():
    overhead = measure(300, concurrency=8)
    assert (overhead.requests, overhead.concurrency) == (300, 8)
    assert overhead.requests_per_second > 0
    assert overhead.client_cpu_ms > overhead.stub_cpu_ms > 0
    assert overhead.peak_rss_bytes > 20e6


def test_a_client_that_fails_is_no_measurement(monkeypatch):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(MeasurementError, match="ended with 2"):
        measure(10, concurrency=1)

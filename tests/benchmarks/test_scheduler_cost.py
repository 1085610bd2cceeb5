"""The scheduler's load keeps its shape, so that only the queue's length differs between the points of the curve."""

from __future__ import annotations

import pytest

from benchmarks.scheduler_cost import SchedulerLoad, scheduler_step


@pytest.mark.parametrize("num_waiting", [1, 50])
def test_as_many_wait_however_many_have_ended(num_waiting: int) -> None:
    load = SchedulerLoad(num_waiting)
    for _ in range(120):
        assert load.step() > 0
    scheduler = load.scheduler
    assert scheduler.num_waiting + len(scheduler.running) == 64 + num_waiting
    assert len(scheduler.running) > 32
    assert scheduler.counters.finished > 64
    assert scheduler.counters.preemptions == scheduler.counters.cached_tokens == 0


def test_point() -> None:
    point = scheduler_step(3)
    assert point["num_waiting"] == 3
    assert 0 < point["step_ms"]["median"] <= point["step_ms"]["p95"]

"""The model of a step's cost: it finds the machine's numbers, and keeps steps within the bound."""

from __future__ import annotations

import random

import pytest

from server.engine.step_cost import StepCost

FEWEST = 16  # what the scheduler gives prefills at least


class Machine:
    """Steps of a machine whose numbers are known, each up to `noise` away from them."""

    def __init__(self, *, fixed: float, per_decode: float, per_prefill: float, noise: float = 0.0) -> None:
        self.fixed, self.per_decode, self.per_prefill = fixed, per_decode, per_prefill
        self._noise = noise
        self._random = random.Random(7)

    def seconds(self, num_decode: int, num_prefill: int) -> float:
        exact = self.fixed + self.per_decode * num_decode + self.per_prefill * num_prefill
        return exact * self._random.uniform(1 - self._noise, 1 + self._noise)

    def run(self, cost: StepCost, num_decode: int, num_prefill: int) -> float:
        """One step, of which `cost` is told -> how many times longer than its decode tokens alone it took."""
        seconds = self.seconds(num_decode, num_prefill)
        cost.observe(num_decode, num_prefill, seconds)
        return seconds / (self.fixed + self.per_decode * num_decode)


def small_machine(noise: float = 0.0) -> Machine:
    return Machine(fixed=0.025, per_decode=0.00175, per_prefill=0.0015, noise=noise)


def test_nothing_is_known_at_first() -> None:
    assert StepCost(2.0).prefill_within_bound(8) is None


@pytest.mark.parametrize("num_decode", [1, 8, 64])
def test_the_numbers_of_a_steady_machine_are_found(num_decode: int) -> None:
    cost, machine = StepCost(2.0), small_machine()
    for decode, prefill in ((0, 512), (1, 0), (8, 100), (4, 30), (64, 0)) * 5:
        machine.run(cost, decode, prefill)
    alone = machine.fixed + machine.per_decode * num_decode
    assert cost.prefill_within_bound(num_decode) == pytest.approx(0.8 * alone / machine.per_prefill, rel=0.05, abs=1)


def test_steps_beside_streams_stay_within_the_bound() -> None:
    cost, machine = StepCost(2.0), small_machine(noise=0.08)
    machine.run(cost, 0, 512)
    for _ in range(3):
        machine.run(cost, 8, 0)
    slowdowns = [machine.run(cost, 8, max(FEWEST, cost.prefill_within_bound(8) or 0)) for _ in range(300)]
    assert max(slowdowns[10:]) < 2.1
    assert sum(slowdowns) / len(slowdowns) > 1.5, "prefills get their share too"


def test_thousands_of_like_steps_do_not_wear_the_model_out() -> None:
    cost, machine = StepCost(2.0), small_machine(noise=0.05)
    machine.run(cost, 0, 512)
    machine.run(cost, 32, 0)
    slowdowns = [machine.run(cost, 32, max(FEWEST, cost.prefill_within_bound(32) or 0)) for _ in range(5_000)]
    assert max(slowdowns[100:]) < 2.2
    assert min(slowdowns[100:]) > 1.2


def test_a_machine_that_becomes_slower_is_followed() -> None:
    cost, machine = StepCost(2.0), small_machine()
    for step in range(200):
        machine.run(cost, 8, 0 if step % 2 else 20)
    machine.per_prefill *= 3
    for step in range(100):
        machine.run(cost, 8, 0 if step % 2 else 20)
    assert cost.prefill_within_bound(8) == pytest.approx(0.8 * 0.039 / 0.0045, abs=1)


def test_a_larger_bound_gives_prefills_more() -> None:
    few, many = StepCost(1.5), StepCost(4.0)
    for cost in (few, many):
        for decode, prefill in ((0, 512), (1, 0), (8, 100)):
            small_machine().run(cost, decode, prefill)
    assert (few.prefill_within_bound(8) or 0) < (many.prefill_within_bound(8) or 0)

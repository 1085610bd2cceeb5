"""What the scheduler promises: budgets, order, chunks, preemption, prefix reuse, and no leaked block."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.block_pool import BlockPool
from server.engine.scheduler import Scheduler, SchedulerLimits
from server.engine.sequence import Sequence
from server.engine.step_cost import StepCost
from server.request import EngineRequest, SamplingParams

BLOCK = 4


def make_scheduler(
    *,
    num_blocks: int = 64,
    budget: int = 32,
    places: int = 8,
    prefix_caching: bool = True,
    cost: StepCost | None = None,
) -> Scheduler:
    limits = SchedulerLimits(
        max_batched_tokens=budget,
        max_running_requests=places,
        max_model_len=num_blocks * BLOCK,
        block_size=BLOCK,
        prefix_caching=prefix_caching,
    )
    return Scheduler(limits, BlockPool(num_blocks), cost=cost)


def make_sequence(
    name: str,
    prompt: list[int],
    *,
    new: int = 4,
    priority: int = 0,
    arrival: float = 0.0,
    logprobs_from: int | None = None,
    streamed: bool = False,
) -> Sequence:
    params = SamplingParams(
        max_new_tokens=new,
        prompt_logprobs=None if logprobs_from is None else 0,
        prompt_logprobs_start=logprobs_from or 0,
    )
    request = EngineRequest(
        request_id=name,
        prompt_token_ids=prompt,
        params=params,
        priority=priority,
        arrival_time=arrival,
        is_streamed=streamed,
    )
    return Sequence(request, BLOCK)


def run_step(scheduler: Scheduler, token: int = 7) -> dict[str, int]:
    """One step with a model that always says `token`; returns new tokens computed by request."""
    scheduled = scheduler.schedule()
    for item in scheduled:
        scheduler.computed(item)
        if item.samples:
            item.sequence.token_ids.append(token)
            if item.sequence.stop_reason(scheduler.limits.max_model_len):
                scheduler.finish(item.sequence)
    return {item.sequence.request_id: item.num_new for item in scheduled}


def run_to_end(scheduler: Scheduler, most_steps: int = 10_000) -> int:
    for steps in range(most_steps):
        if not scheduler.has_work:
            return steps
        assert run_step(scheduler), "work is left but nothing was scheduled"
    raise AssertionError(f"not done after {most_steps} steps")


def test_a_prompt_and_its_tokens_take_one_step_each() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", list(range(10)), new=3))
    assert [run_step(scheduler) for _ in range(3)] == [{"a": 10}, {"a": 1}, {"a": 1}]
    assert not scheduler.has_work
    assert scheduler.pool.num_free == scheduler.pool.num_blocks


def test_decode_comes_before_prefill_and_a_long_prompt_fills_what_is_left() -> None:
    scheduler = make_scheduler(budget=8)
    scheduler.add(make_sequence("short", [1, 2, 3], new=9))
    run_step(scheduler)
    scheduler.add(make_sequence("long", list(range(100, 120))))
    assert run_step(scheduler) == {"short": 1, "long": 7}
    assert run_step(scheduler) == {"short": 1, "long": 7}
    assert run_step(scheduler) == {"short": 1, "long": 6}
    assert scheduler.counters.split_prefills == 2


def steady_cost() -> StepCost:
    """One second a step, and a tenth for each token."""
    cost = StepCost(2.0)
    for decode, prefill in ((1, 0), (0, 100), (10, 20), (4, 0)) * 10:
        cost.observe(decode, prefill, 1.0 + 0.1 * (decode + prefill))
    return cost


def test_a_prompt_beside_a_stream_gets_what_its_cost_allows() -> None:
    scheduler = make_scheduler(budget=64, cost=steady_cost())
    scheduler.add(make_sequence("stream", [1, 2, 3], new=30, streamed=True))
    run_step(scheduler)
    scheduler.add(make_sequence("long", list(range(100, 140))))
    chunks = [run_step(scheduler)["long"] for _ in range(3)]
    # 0.8 times the 1.1 s of the stream alone, at 0.1 s a token.
    assert all(7 <= chunk <= 10 for chunk in chunks), chunks


@pytest.mark.parametrize(("streamed", "bounded"), [(False, True), (True, False)])
def test_a_prompt_is_not_held_up_where_nobody_reads_along_or_no_bound_is_wanted(streamed: bool, bounded: bool) -> None:
    scheduler = make_scheduler(budget=64, cost=steady_cost() if bounded else None)
    scheduler.add(make_sequence("other", [1, 2, 3], new=30, streamed=streamed))
    run_step(scheduler)
    scheduler.add(make_sequence("long", list(range(100, 140))))
    assert run_step(scheduler)["long"] == 40


def test_a_prompt_beside_a_stream_gets_a_block_at_least() -> None:
    cost = StepCost(1.0)
    cost.observe(1, 0, 1.0)
    scheduler = make_scheduler(budget=64, cost=cost)
    scheduler.add(make_sequence("stream", [1, 2, 3], new=30, streamed=True))
    run_step(scheduler)
    scheduler.add(make_sequence("long", list(range(100, 140))))
    assert run_step(scheduler) == {"stream": 1, "long": BLOCK}


def test_waiting_sequences_start_by_priority_then_arrival() -> None:
    scheduler = make_scheduler(places=1)
    for name, priority, arrival in (("late", 0, 2.0), ("early", 0, 1.0), ("urgent", -1, 3.0)):
        scheduler.add(make_sequence(name, [1, 2], new=1, priority=priority, arrival=arrival))
    assert [next(iter(run_step(scheduler))) for _ in range(3)] == ["urgent", "early", "late"]


def test_no_more_sequences_run_than_there_are_places() -> None:
    scheduler = make_scheduler(places=2)
    for index in range(5):
        scheduler.add(make_sequence(str(index), [index] * 3, new=2))
    while scheduler.has_work:
        assert len(run_step(scheduler)) <= 2


def test_an_equal_beginning_is_not_computed_twice() -> None:
    scheduler = make_scheduler()
    shared = list(range(12))
    scheduler.add(make_sequence("first", [*shared, 50], new=1))
    run_step(scheduler)
    scheduler.add(make_sequence("second", [*shared, 60, 61], new=1))
    assert run_step(scheduler) == {"second": 2}
    assert scheduler.counters.cached_tokens == 12


def test_a_fully_cached_prompt_computes_its_last_token_alone() -> None:
    scheduler = make_scheduler()
    prompt = list(range(8))
    scheduler.add(make_sequence("first", prompt, new=1))
    run_step(scheduler)
    scheduler.add(make_sequence("again", prompt, new=1))
    assert run_step(scheduler) == {"again": 1}
    assert scheduler.counters.cached_tokens == 7


def test_sequences_that_share_a_beginning_and_come_together_compute_it_once() -> None:
    scheduler = make_scheduler()
    shared = list(range(16))
    for name in ("a", "b", "c"):
        scheduler.add(make_sequence(name, [*shared, ord(name)], new=2, arrival=ord(name)))
    assert run_step(scheduler) == {"a": 17}
    assert run_step(scheduler) == {"a": 1, "b": 1, "c": 1}


def test_choices_whose_likelihood_is_wanted_compute_their_question_once() -> None:
    scheduler = make_scheduler(budget=64)
    question = list(range(12))
    for number in range(3):
        scheduler.add(make_sequence(str(number), [*question, 90 + number, 80], new=1, logprobs_from=12, arrival=number))
    assert run_step(scheduler) == {"0": 14}
    # The logits of position 12 come from token 11, which alone of its block is computed again.
    assert run_step(scheduler) == {"1": 3, "2": 3}
    assert not scheduler.has_work


def test_without_prefix_caching_everything_is_computed() -> None:
    scheduler = make_scheduler(prefix_caching=False)
    for name in ("a", "b"):
        scheduler.add(make_sequence(name, list(range(8)), new=1))
    assert run_step(scheduler) == {"a": 8, "b": 8}


@pytest.mark.parametrize(("start", "computed"), [(0, 12), (1, 12), (5, 8), (9, 4), (11, 2)])
def test_prompt_positions_with_wanted_logprobs_are_computed_even_when_cached(start: int, computed: int) -> None:
    scheduler = make_scheduler()
    prompt = list(range(12))
    scheduler.add(make_sequence("first", prompt, new=1))
    run_step(scheduler)
    scheduler.add(make_sequence("scored", prompt, new=1, logprobs_from=start))
    assert run_step(scheduler) == {"scored": computed}


def test_when_blocks_run_out_the_last_in_order_starts_over_and_all_finish() -> None:
    scheduler = make_scheduler(num_blocks=6, prefix_caching=False)
    for index, name in enumerate(("a", "b", "c")):
        scheduler.add(make_sequence(name, [index] * 4, new=12, arrival=index))
    run_to_end(scheduler)
    assert scheduler.counters.preemptions > 0
    assert scheduler.counters.finished == 3
    assert scheduler.pool.num_free == 6


def test_a_sequence_that_fills_the_whole_cache_ends_by_length() -> None:
    scheduler = make_scheduler(num_blocks=3)
    sequence = make_sequence("a", [1] * 5, new=1000)
    scheduler.add(sequence)
    run_to_end(scheduler)
    assert sequence.num_tokens == 3 * BLOCK


def test_refusals_name_both_counts() -> None:
    scheduler = make_scheduler(num_blocks=2)
    assert scheduler.refusal(make_sequence("a", [1] * 8)) == "the prompt has 8 tokens, this server takes 1 to 7"
    assert scheduler.refusal(make_sequence("a", [])) == "the prompt has 0 tokens, this server takes 1 to 7"
    assert scheduler.refusal(make_sequence("a", [1] * 7)) is None


def test_an_id_in_use_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", [1]))
    assert "already in use" in (scheduler.refusal(make_sequence("a", [1])) or "")


def test_aborting_frees_blocks_at_once_and_unknown_ids_are_ignored() -> None:
    scheduler = make_scheduler()
    for name in ("running", "waiting"):
        scheduler.add(make_sequence(name, [1] * 30 if name == "waiting" else [2] * 30, arrival=name == "waiting"))
    run_step(scheduler)
    scheduler.abort(["running", "nobody", "waiting"])
    assert not scheduler.has_work
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    assert scheduler.counters.aborted == 2


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(3, 24),
    budget=st.integers(1, 40),
    places=st.integers(1, 6),
    prefix_caching=st.booleans(),
)
def test_random_traffic_finishes_within_limits_and_leaks_nothing(
    seed: int, num_blocks: int, budget: int, places: int, prefix_caching: bool
) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(num_blocks=num_blocks, budget=budget, places=places, prefix_caching=prefix_caching)
    expected = {}
    arrivals = [rng.randrange(20) for _ in range(12)]
    step = 0
    while scheduler.has_work or arrivals:
        for index in [i for i, arrival in enumerate(arrivals) if arrival <= step]:
            name = f"{step}-{index}"
            length = rng.randint(1, num_blocks * BLOCK - 1)
            # Few distinct tokens, so that beginnings are often shared.
            sequence = make_sequence(name, [rng.randrange(2)] * length, new=rng.randint(1, 9), arrival=step)
            assert scheduler.refusal(sequence) is None
            scheduler.add(sequence)
            expected[name] = sequence
        arrivals = [arrival for arrival in arrivals if arrival > step]
        if expected and rng.random() < 0.05:
            scheduler.abort([rng.choice(list(expected))])
        scheduled = scheduler.schedule()
        assert scheduled or not scheduler.has_work
        assert sum(item.num_new for item in scheduled) <= budget
        assert len(scheduled) <= places
        assert len({item.sequence.request_id for item in scheduled}) == len(scheduled)
        for item in scheduled:
            end = item.sequence.num_computed + item.num_new
            assert len(item.sequence.blocks) * BLOCK >= end
            scheduler.computed(item)
            if item.samples:
                item.sequence.token_ids.append(rng.randrange(2))
                if item.sequence.stop_reason(scheduler.limits.max_model_len):
                    scheduler.finish(item.sequence)
        step += 1
        assert step < 20_000, "no progress"
    assert scheduler.pool.num_free == num_blocks
    assert scheduler.counters.finished + scheduler.counters.aborted == len(expected)

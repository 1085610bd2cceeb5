"""Which sequences are guessed, how many tokens pay, which are kept, and that guesses take nothing from anyone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.block_pool import BlockPool
from server.engine.scheduler import ScheduledSequence, Scheduler, SchedulerLimits
from server.engine.sequence import SampledToken, Sequence
from server.engine.speculation import accepted, least_likelihood, may_guess, most_useful
from server.engine.step_plan import build_plan
from server.request import EngineRequest, SamplingParams

BLOCK = 4
PERIOD = [3, 1, 4, 1, 5, 9, 2, 6]


def make_sequence(name: str, prompt: list[int], *, arrival: float = 0.0, **params: Any) -> Sequence:
    params = {"temperature": 0.0, "max_new_tokens": 40} | params
    request = EngineRequest(
        request_id=name, prompt_token_ids=prompt, params=SamplingParams(**params), arrival_time=arrival
    )
    return Sequence(request, BLOCK)


def make_scheduler(*, num_blocks: int = 64, budget: int = 64, speculative_tokens: int = 4) -> Scheduler:
    limits = SchedulerLimits(
        max_batched_tokens=budget,
        max_running_requests=8,
        max_model_len=num_blocks * BLOCK,
        block_size=BLOCK,
        speculative_tokens=speculative_tokens,
    )
    return Scheduler(limits, BlockPool(num_blocks))


def next_token(sequence: Sequence) -> int:
    """A model that goes on periodically, whatever the prompt was."""
    return PERIOD[sequence.num_tokens % len(PERIOD)]


def run_step(scheduler: Scheduler) -> list[ScheduledSequence]:
    """One step with `next_token`, as the engine does it."""
    scheduled = scheduler.schedule()
    for item in scheduled:
        sequence = item.sequence
        scheduler.computed(item)
        for guessed in (*item.guess, None) if item.samples else ():
            token = next_token(sequence)
            sequence.append(token)
            if sequence.stop_reason(scheduler.limits.max_model_len):
                scheduler.finish(sequence)
                break
            if guessed != token:
                break
            scheduler.guess_came_true(sequence)
    return scheduled


def test_choices_behind_right_guesses_are_kept() -> None:
    def kept(guess: list[int], *chosen: int | None) -> list[int]:
        tokens = [SampledToken(0, error="no") if token is None else SampledToken(token) for token in chosen]
        return [token.token_id for token in accepted(guess, tokens)]

    assert kept([], 5) == [5]
    assert kept([5, 6], 5, 6, 7) == [5, 6, 7]
    assert kept([5, 9], 5, 6, 7) == [5, 6]
    assert kept([9, 6], 5, 6, 7) == [5]
    assert kept([5, 6], 5, None, 7) == [5]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, True),
        ({"logprobs": 3, "logit_bias": {1: 2.0}, "stop_token_ids": (2,)}, True),
        ({"temperature": 0.7}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"presence_penalty": 0.1}, False),
        ({"frequency_penalty": -0.1}, False),
        ({"min_new_tokens": 2}, False),
        ({"prompt_logprobs": 0}, False),
    ],
)
def test_only_sequences_whose_rows_are_independent_are_guessed(params: dict[str, Any], expected: bool) -> None:
    assert may_guess(make_sequence("a", [1, 2, 3], **params)) is expected


def test_guessing_begins_when_the_minimum_is_reached_and_the_prompt_s_probabilities_are_out() -> None:
    sequence = make_sequence("a", [1, 2, 3], min_new_tokens=1, prompt_logprobs=0)
    sequence.append(4)
    assert may_guess(sequence)


def test_the_last_guess_leaves_a_token_to_follow() -> None:
    sequence = make_sequence("a", [1, 2, 3], max_new_tokens=5)
    assert most_useful(sequence, 100) == 4
    assert most_useful(sequence, 6) == 2
    assert most_useful(sequence, 4) == most_useful(sequence, 3) == 0


def test_the_more_sequences_run_the_surer_a_guess_must_be() -> None:
    bounds = [least_likelihood(count) for count in (1, 4, 16, 64, 256)]
    assert bounds == sorted(bounds)
    assert bounds[0] < 0.1
    assert bounds[-1] > 0.9


def test_a_repeated_text_takes_fewer_steps_and_is_the_same() -> None:
    plain, guessing = make_scheduler(speculative_tokens=0), make_scheduler()
    steps = {}
    sequences = {}
    for name, scheduler in (("plain", plain), ("guessing", guessing)):
        sequences[name] = make_sequence(name, PERIOD * 3)
        scheduler.add(sequences[name])
        steps[name] = 0
        while scheduler.has_work:
            run_step(scheduler)
            steps[name] += 1
        assert scheduler.pool.num_free == scheduler.pool.num_blocks
    assert sequences["guessing"].token_ids == sequences["plain"].token_ids
    assert steps["plain"] == 40
    assert steps["guessing"] < 14
    counters = guessing.counters
    assert counters.accepted_tokens == 40 - steps["guessing"]
    assert counters.drafts <= steps["guessing"]
    assert counters.draft_tokens >= counters.accepted_tokens


def test_guesses_travel_behind_the_newest_token_with_a_row_of_logits_each() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence("a", PERIOD * 2))
    run_step(scheduler)
    [item] = scheduler.schedule()
    assert item.guess
    assert item.num_own == 1
    plan = build_plan([item])
    assert plan.token_ids.tolist() == [item.sequence.token_ids[-1], *item.guess]
    assert plan.logit_rows.tolist() == [[0, item.num_new]]
    assert plan.num_computed.tolist() == [item.sequence.num_tokens - 1]


def test_guesses_get_what_prefills_leave_of_the_budget() -> None:
    scheduler = make_scheduler(budget=20)
    scheduler.add(make_sequence("a", PERIOD * 2, arrival=1))
    run_step(scheduler)
    scheduler.add(make_sequence("b", [7] * 18, arrival=2))
    scheduled = {item.sequence.request_id: item.num_new for item in scheduler.schedule()}
    assert scheduled == {"a": 2, "b": 18}


def test_guesses_take_no_block_that_a_running_sequence_may_need_next() -> None:
    scheduler = make_scheduler(num_blocks=6)
    scheduler.add(make_sequence("a", PERIOD * 2))
    run_step(scheduler)
    [item] = scheduler.schedule()
    assert len(item.sequence.blocks) == 5  # 16 tokens and the one that was sampled; one block stays free
    assert item.num_new == 4


def test_the_prefix_cache_never_remembers_a_wrong_guess() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence("a", [8, 8, 8, 8, 8, 8])  # as if it went on with 8 for ever
    scheduler.add(sequence)
    run_step(scheduler)
    sequence.token_ids[-1] = 8
    [item] = scheduler.schedule()
    assert item.guess[0] == 8
    scheduler.computed(item)
    sequence.append(7)
    assert sequence.num_computed == 7
    assert scheduler.pool.match(sequence.block_hashes()) == sequence.blocks[:1]
    scheduler.abort(["a"])
    assert scheduler.pool.match(make_sequence("b", [8] * 12).block_hashes()) == [sequence_block(scheduler)]


def sequence_block(scheduler: Scheduler) -> int:
    """The one block that is remembered."""
    [block] = scheduler.pool._block_with.values()
    return block


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(4, 24), budget=st.integers(1, 40), most=st.integers(1, 9))
def test_random_traffic_gets_the_same_tokens_and_leaks_nothing(
    seed: int, num_blocks: int, budget: int, most: int
) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(num_blocks=num_blocks, budget=budget, speculative_tokens=most)
    sequences = []
    for index in range(8):
        prompt = [rng.randrange(2)] * rng.randint(1, num_blocks * BLOCK - 1)
        sequence = make_sequence(str(index), prompt, arrival=index, max_new_tokens=rng.randint(1, 30))
        scheduler.add(sequence)
        sequences.append(sequence)
    for _ in range(5_000):
        if not scheduler.has_work:
            break
        scheduled = run_step(scheduler)
        assert 0 < sum(item.num_new for item in scheduled) <= budget
    assert scheduler.counters.finished == 8
    assert scheduler.pool.num_free == num_blocks
    for sequence in sequences:
        made = sequence.output_token_ids
        first = sequence.num_prompt_tokens
        assert made == [PERIOD[(first + index) % len(PERIOD)] for index in range(len(made))]
        assert len(made) == min(sequence.params.max_new_tokens, num_blocks * BLOCK - first)

"""Positions, slots and attention metadata against a slow truth that works token by token."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.input_builder import StepInput, build_input
from server.engine.input_transfer import transfer_to
from server.engine.scheduler import ScheduledSequence
from server.engine.sequence import Sequence
from server.engine.step_plan import build_plan, order_for_execution
from server.request import EngineRequest, SamplingParams

BLOCK = 4


def random_step(seed: int, count: int) -> list[ScheduledSequence]:
    rng = random.Random(seed)
    free = list(range(500))
    rng.shuffle(free)
    items = []
    for index in range(count):
        computed = rng.choice([0, rng.randrange(40)])
        new = rng.choice([1, 1, rng.randint(1, 20)])
        rest = rng.choice([0, 3])
        tokens = [rng.randrange(1000) for _ in range(computed + new + rest)]
        sequence = Sequence(
            EngineRequest(request_id=str(index), prompt_token_ids=tokens, params=SamplingParams()), BLOCK
        )
        sequence.num_computed = computed
        sequence.blocks = [free.pop() for _ in range(-(-(computed + new) // BLOCK))]
        items.append(ScheduledSequence(sequence, new, samples=rest == 0))
    return order_for_execution(items)


def build(items: list[ScheduledSequence]) -> StepInput:
    return build_input(build_plan(items), BLOCK, transfer_to(torch.device("cpu")))


def slot(sequence: Sequence, position: int) -> int:
    return sequence.blocks[position // BLOCK] * BLOCK + position % BLOCK


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 12))
def test_against_token_by_token(seed: int, count: int) -> None:
    items = random_step(seed, count)
    step = build(items)
    tokens, positions, slots, logit_rows = [], [], [], []
    for item in items:
        sequence = item.sequence
        for position in range(sequence.num_computed, sequence.num_computed + item.num_new):
            tokens.append(sequence.token_ids[position])
            positions.append(position)
            slots.append(slot(sequence, position))
        if item.samples:
            logit_rows.append(len(tokens) - 1)
    assert step.token_ids.tolist() == tokens
    assert step.metadata.positions.tolist() == positions
    assert step.metadata.slot_mapping.tolist() == slots
    assert step.logit_rows.tolist() == logit_rows


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 12))
def test_attention_reads_each_sequence_s_own_blocks_and_no_others(seed: int, count: int) -> None:
    items = random_step(seed, count)
    metadata = build(items).metadata
    assert metadata.query_starts[0] == 0
    rows = zip(items, metadata.query_starts[1:], metadata.kv_lengths, metadata.block_tables, strict=True)
    end = 0
    for item, query_end, kv_length, table in rows:
        end += item.num_new
        assert query_end == end
        assert kv_length == item.sequence.num_computed + item.num_new
        own = item.sequence.blocks
        assert table[: len(own)].tolist() == own
        assert not table[len(own) :].any()

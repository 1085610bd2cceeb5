"""Positions, slots and attention metadata against a slow truth that works token by token."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.input_builder import StepInput, build_input
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
    return build_input(build_plan(items), BLOCK, torch.device("cpu"))


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
    decode = [item for item in items if item.num_new == 1]
    assert metadata.num_decode_rows == len(decode)
    covered = 0
    for group in metadata.decode_groups:
        assert group.rows.start == covered
        covered = group.rows.stop
        for row, blocks, padding in zip(decode[group.rows], group.blocks, group.padding, strict=True):
            length = row.sequence.num_computed + 1
            own = -(-length // BLOCK)
            assert blocks[:own].tolist() == row.sequence.blocks[:own]
            assert not blocks[own:].any()
            assert padding[0, 0].tolist() == [False] * length + [True] * (len(blocks) * BLOCK - length)
    assert covered == len(decode)
    begin = len(decode)
    for item, chunk in zip(items[len(decode) :], metadata.prefill_chunks, strict=True):
        length = item.sequence.num_computed + item.num_new
        assert (chunk.rows.start, chunk.rows.stop, chunk.kv_length) == (begin, begin + item.num_new, length)
        begin += item.num_new
        if item.sequence.num_computed == 0:
            assert chunk.blocks is None
        else:
            assert chunk.blocks is not None
            assert chunk.blocks.tolist() == [item.sequence.blocks[: -(-length // BLOCK)]]


@pytest.mark.parametrize(("lengths", "groups"), [([40, 39, 38], 1), ([40, 10, 9], 2), ([100, 30, 5, 5], 3)])
def test_rows_of_very_different_length_are_attended_apart(lengths: list[int], groups: int) -> None:
    items = []
    for index, length in enumerate(lengths):
        request = EngineRequest(request_id=str(index), prompt_token_ids=[1] * length, params=SamplingParams())
        sequence = Sequence(request, BLOCK)
        sequence.num_computed = length - 1
        sequence.blocks = list(range(index * 30, index * 30 + -(-length // BLOCK)))
        items.append(ScheduledSequence(sequence, 1, samples=True))
    assert len(build(items).metadata.decode_groups) == groups

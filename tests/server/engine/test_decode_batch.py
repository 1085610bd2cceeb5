"""Which steps may be filled up to a recorded batch, and what filling up adds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.decode_batch import batch_sizes, decodes_only, padded_to
from server.engine.input_builder import input_arrays
from server.engine.step_plan import StepKind, StepPlan

BLOCK, SPARE = 4, 99


def int32(*rows: Any) -> Any:
    return np.array(rows, dtype=np.int32)


def decode_plan(lengths: list[int]) -> StepPlan:
    """Sequences of so many tokens before this step, in blocks 0, 1, 2 and so on."""
    num_blocks = [length // BLOCK + 1 for length in lengths]
    return StepPlan(
        StepKind.RUN,
        num_new=int32(*[1] * len(lengths)),
        num_computed=int32(*lengths),
        num_blocks=int32(*num_blocks),
        logit_rows=int32(*[(0, 1)] * len(lengths)),
        token_ids=int32(*range(7, 7 + len(lengths))),
        block_ids=int32(*range(sum(num_blocks))),
    )


@given(st.integers(1, 5000))
def test_batch_sizes(most: int) -> None:
    sizes = batch_sizes(most)
    assert (sizes[0], sizes[-1]) == (1, most)
    assert all(small < large <= 2 * small for small, large in pairwise(sizes))


def test_a_step_that_only_decodes() -> None:
    plan = decode_plan([5, 3])
    assert decodes_only(plan)
    assert not decodes_only(StepPlan(StepKind.RUN))
    # A prompt's chunk, a chunk of one token with more to come, and a token that is part of an image.
    assert not decodes_only(replace(plan, num_new=int32(1, 2)))
    assert not decodes_only(replace(plan, logit_rows=int32((0, 1), (1, 1))))
    assert not decodes_only(replace(plan, spans=int32((1, 1, 0, 0))))


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(0, 4))
def test_what_is_added_stays_by_itself(lengths: list[int], missing: int) -> None:
    count = len(lengths)
    plan = decode_plan(lengths) if lengths else StepPlan(StepKind.RUN)
    size = count + missing
    if not size:
        return
    alone = input_arrays(plan, BLOCK, table_width=9)
    filled = input_arrays(padded_to(plan, size, SPARE), BLOCK, table_width=9)
    assert filled.token_ids.tolist() == alone.token_ids.tolist() + [0] * missing
    assert filled.logit_rows.tolist() == list(range(size))
    assert filled.step.positions.tolist() == [*lengths, *[0] * missing]
    assert filled.step.slot_mapping.tolist() == alone.step.slot_mapping.tolist() + [SPARE * BLOCK] * missing
    assert filled.step.query_starts.tolist() == list(range(size + 1))
    assert filled.step.kv_lengths.tolist() == [length + 1 for length in lengths] + [1] * missing
    assert filled.step.block_tables.shape == (size, 9)
    assert (filled.step.block_tables[:count] == alone.step.block_tables).all()
    assert filled.step.block_tables[count:].tolist() == [[SPARE, *[0] * 8]] * missing
    assert all(array.dtype == other.dtype for array, other in zip(filled.in_order(), alone.in_order(), strict=True))


def test_a_step_is_not_made_smaller() -> None:
    with pytest.raises(AssertionError):
        padded_to(decode_plan([1, 2]), 1, SPARE)

"""One step as rank 0 decided it, in a form that travels to the other ranks as one array of int32.

Layout: header [kind, num_sequences, num_tokens, num_block_ids], then per sequence [num_new, num_computed, num_blocks,
first_logit_row, num_logit_rows], then token ids, then block ids.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.engine.scheduler import ScheduledSequence

Int32Array = NDArray[np.int32]
_HEADER = 4
_PER_SEQUENCE = 5


class StepKind(IntEnum):
    """RUN: execute the plan. IDLE: nothing to do, a sign of life. STOP: leave the loop."""

    RUN = 0
    IDLE = 1
    STOP = 2


@dataclass(frozen=True)
class StepPlan:
    """What every rank executes.

    num_new, num_computed, num_blocks: (S,) per sequence, decode first, each group by falling KV length.
    logit_rows: (S, 2), begin and end within the sequence's new tokens of the rows whose logits are wanted.
    token_ids: (T,). block_ids: the sequences' block tables end to end.
    """

    kind: StepKind
    num_new: Int32Array
    num_computed: Int32Array
    num_blocks: Int32Array
    logit_rows: Int32Array
    token_ids: Int32Array
    block_ids: Int32Array

    @property
    def num_sequences(self) -> int:
        return len(self.num_new)

    def encode(self) -> Int32Array:
        """The plan as one array."""
        header = np.array([self.kind, self.num_sequences, len(self.token_ids), len(self.block_ids)], dtype=np.int32)
        table = np.column_stack((self.num_new, self.num_computed, self.num_blocks, self.logit_rows)).astype(np.int32)
        return np.concatenate((header, table.ravel(), self.token_ids, self.block_ids))

    @classmethod
    def decode(cls, data: Int32Array) -> StepPlan:
        """Inverse of `encode`; ignores what follows the plan in `data`."""
        kind, num_sequences, num_tokens, num_block_ids = (int(field) for field in data[:_HEADER])
        end_of_table = _HEADER + num_sequences * _PER_SEQUENCE
        table = data[_HEADER:end_of_table].reshape(num_sequences, _PER_SEQUENCE)
        tokens_end = end_of_table + num_tokens
        return cls(
            kind=StepKind(kind),
            num_new=table[:, 0],
            num_computed=table[:, 1],
            num_blocks=table[:, 2],
            logit_rows=table[:, 3:],
            token_ids=data[end_of_table:tokens_end],
            block_ids=data[tokens_end : tokens_end + num_block_ids],
        )

    @classmethod
    def signal(cls, kind: StepKind) -> StepPlan:
        """A plan without work."""
        empty = np.zeros(0, dtype=np.int32)
        return cls(kind, empty, empty, empty, np.zeros((0, 2), dtype=np.int32), empty, empty)


def order_for_execution(scheduled: Items[ScheduledSequence]) -> list[ScheduledSequence]:
    """Decode first, each group by falling KV length: rows of similar length lie side by side for attention."""
    return sorted(scheduled, key=lambda item: (item.num_new > 1, -(item.sequence.num_computed + item.num_new)))


def build_plan(scheduled: Items[ScheduledSequence]) -> StepPlan:
    """The plan for sequences in execution order."""
    token_ids: list[int] = []
    block_ids: list[int] = []
    table: list[tuple[int, ...]] = []
    for item in scheduled:
        sequence = item.sequence
        end = sequence.num_computed + item.num_new
        token_ids += sequence.token_ids[sequence.num_computed : end]
        block_ids += sequence.blocks
        table.append((item.num_new, sequence.num_computed, len(sequence.blocks), *_logit_rows(item)))
    columns = np.array(table, dtype=np.int32).reshape(len(scheduled), _PER_SEQUENCE)
    return StepPlan(
        kind=StepKind.RUN,
        num_new=columns[:, 0],
        num_computed=columns[:, 1],
        num_blocks=columns[:, 2],
        logit_rows=columns[:, 3:],
        token_ids=_int32(token_ids),
        block_ids=_int32(block_ids),
    )


def _logit_rows(item: ScheduledSequence) -> tuple[int, int]:
    """Rows whose logits are wanted: the last one if a token follows, and those that predict wanted prompt tokens."""
    begin = item.num_new - 1 if item.samples else item.num_new
    if item.sequence.wants_prompt_logprobs:
        # Row p predicts token p + 1.
        first = max(item.sequence.params.prompt_logprobs_start - 1, 0) - item.sequence.num_computed
        begin = max(0, min(begin, first))
    return begin, item.num_new


def _int32(values: list[int]) -> Int32Array:
    array: NDArray[Any] = np.array(values, dtype=np.int32)
    return array

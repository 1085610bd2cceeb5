"""Turns a step plan into what the model reads: positions, slots and attention metadata, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from model_providers.backends.step_metadata import StepArrays, StepMetadata
from server.engine.input_transfer import Arrays, Transfer
from server.engine.step_plan import StepPlan


@dataclass(frozen=True)
class InputArrays:
    """`StepInput` while it is still with the host."""

    token_ids: NDArray[np.int64]
    logit_rows: NDArray[np.int64]
    step: StepArrays

    def in_order(self) -> Arrays:
        return (self.token_ids, self.logit_rows, *self.step)


@dataclass(frozen=True)
class StepInput:
    """token_ids: (T,) int64. logit_rows: (R,) int64, rows of T whose logits are wanted, in sequence order."""

    token_ids: Tensor
    logit_rows: Tensor
    metadata: StepMetadata

    @classmethod
    def of(cls, arrays: InputArrays, tensors: Items[Tensor]) -> StepInput:
        """tensors: `arrays.in_order()` on the device."""
        token_ids, logit_rows, *of_step = tensors
        return cls(token_ids, logit_rows, StepMetadata.of(arrays.step, of_step))


def build_input(plan: StepPlan, block_size: int, transfer: Transfer) -> StepInput:
    """The step on the device that `transfer` leads to."""
    arrays = input_arrays(plan, block_size)
    return StepInput.of(arrays, transfer(arrays.in_order()))


def input_arrays(plan: StepPlan, block_size: int, *, table_width: int | None = None) -> InputArrays:
    """Vectorised over sequences: no Python loop per token or per sequence.

    table_width: of the block tables; by default that of the longest.
    """
    width = int(plan.num_blocks.max(initial=0)) if table_width is None else table_width
    step = StepArrays.build(plan.num_new, plan.num_computed, _block_tables(plan, width), block_size=block_size)
    begins = step.query_starts[:-1] + plan.logit_rows[:, 0]
    counts = (plan.logit_rows[:, 1] - plan.logit_rows[:, 0]).astype(np.int64)
    logit_rows = np.repeat(begins - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(counts.sum())
    return InputArrays(plan.token_ids.astype(np.int64), logit_rows, step)


def _block_tables(plan: StepPlan, width: int) -> NDArray[np.int32]:
    """(S, width) block ids, 0 where a table is shorter."""
    filled = np.arange(width) < plan.num_blocks[:, None]
    tables = np.zeros(filled.shape, dtype=np.int32)
    tables[filled] = plan.block_ids
    return tables

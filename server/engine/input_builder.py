"""Turns a step plan into what the model reads: positions, slots and attention metadata, the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_providers.backends.step_metadata import StepMetadata
from server.engine.step_plan import StepPlan


@dataclass(frozen=True)
class StepInput:
    """token_ids: (T,) int64. logit_rows: (R,) int64, rows of T whose logits are wanted, in sequence order."""

    token_ids: Tensor
    logit_rows: Tensor
    metadata: StepMetadata


def build_input(plan: StepPlan, block_size: int, device: torch.device) -> StepInput:
    """Vectorised over sequences: no Python loop per token or per sequence."""
    metadata = StepMetadata.build(
        plan.num_new, plan.num_computed, _block_tables(plan), block_size=block_size, device=device
    )
    begins = metadata.query_starts[:-1] + plan.logit_rows[:, 0]
    counts = (plan.logit_rows[:, 1] - plan.logit_rows[:, 0]).astype(np.int64)
    logit_rows = np.repeat(begins - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(counts.sum())
    return StepInput(_tensor(plan.token_ids, device), _tensor(logit_rows, device), metadata)


def _block_tables(plan: StepPlan) -> NDArray[np.int32]:
    """(S, widest table) block ids, 0 where a table is shorter."""
    filled = np.arange(plan.num_blocks.max(initial=0)) < plan.num_blocks[:, None]
    tables = np.zeros(filled.shape, dtype=np.int32)
    tables[filled] = plan.block_ids
    return tables


def _tensor(array: NDArray[np.integer], device: torch.device) -> Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(device, non_blocking=True)

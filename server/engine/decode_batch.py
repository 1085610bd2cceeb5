"""Which steps a CUDA graph can serve, in batches of which sizes, and how a step is filled up to one. Pure planning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from server.engine.step_plan import Int32Array, StepPlan


def batch_sizes(max_running_requests: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, and the largest batch itself.

    Twice as many rows cost a decode step little, since it mostly reads weights, and each size costs start-up time.
    """
    doubled = [2**power for power in range(max_running_requests.bit_length()) if 2**power < max_running_requests]
    return (*doubled, max_running_requests)


def decodes_only(plan: StepPlan) -> bool:
    """Whether every sequence contributes one token, which is a word and whose logits are wanted."""
    return (
        plan.num_sequences > 0
        and len(plan.spans) == 0
        and bool((plan.num_new == 1).all())
        and bool((plan.logit_rows == (0, 1)).all())
    )


def padded_to(plan: StepPlan, batch_size: int, spare_block: int) -> StepPlan:
    """The plan with sequences of one token added, which write to the spare block and see only themselves.

    spare_block: one that belongs to no sequence.
    """
    missing = batch_size - plan.num_sequences
    assert missing >= 0, "a step is not made smaller"
    return replace(
        plan,
        num_new=_longer(plan.num_new, missing, 1),
        num_computed=_longer(plan.num_computed, missing, 0),
        num_blocks=_longer(plan.num_blocks, missing, 1),
        logit_rows=np.concatenate((plan.logit_rows, np.tile(np.array([0, 1], dtype=np.int32), (missing, 1)))),
        token_ids=_longer(plan.token_ids, missing, 0),
        block_ids=_longer(plan.block_ids, missing, spare_block),
    )


def _longer(array: Int32Array, missing: int, value: int) -> Int32Array:
    return np.concatenate((array, np.full(missing, value, dtype=np.int32)))

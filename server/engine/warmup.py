"""Runs the model once before the first request: libraries compile kernels and allocate buffers on first use."""

from __future__ import annotations

import gc

import numpy as np

from server.engine.build import BuiltRank
from server.engine.freed_memory import keep_freed_memory, return_freed_memory
from server.engine.step_plan import Int32Array, StepKind, StepPlan


def warm_up(built: BuiltRank) -> None:
    """One prefill and one decode step through block 0, which holds nothing yet. All ranks take part.

    Raises ConfigurationError where CUDA graphs cannot be recorded.
    """
    built.runner.record_graphs()
    for num_new, num_computed in ((min(built.limits.block_size, built.limits.max_model_len) - 1, 0), (1, 1)):
        for _ in built.runner.execute(_plan(num_new, num_computed)):
            pass
    # What is there now stays. The garbage collector would otherwise go through all of it again and again as requests
    # come and go, and hold a step up for some 200 ms each time.
    gc.collect()
    gc.freeze()
    return_freed_memory()
    keep_freed_memory()


def _plan(num_new: int, num_computed: int) -> StepPlan:
    return StepPlan(
        kind=StepKind.RUN,
        num_new=_row(num_new),
        num_computed=_row(num_computed),
        num_blocks=_row(1),
        logit_rows=np.array([[num_new - 1, num_new]], dtype=np.int32),
        token_ids=np.zeros(num_new, dtype=np.int32),
        block_ids=_row(0),
    )


def _row(value: int) -> Int32Array:
    return np.array([value], dtype=np.int32)

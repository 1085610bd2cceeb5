"""A plan survives its journey to the other ranks, and says which logits are wanted."""

from __future__ import annotations

import numpy as np
import pytest

from server.engine.scheduler import ScheduledSequence
from server.engine.sequence import Sequence
from server.engine.step_plan import StepKind, StepPlan, build_plan, order_for_execution
from server.request import EngineRequest, SamplingParams


def scheduled(
    name: str, num_tokens: int, *, computed: int, new: int, logprobs_from: int | None = None
) -> ScheduledSequence:
    params = SamplingParams(
        prompt_logprobs=None if logprobs_from is None else 0, prompt_logprobs_start=logprobs_from or 0
    )
    sequence = Sequence(
        EngineRequest(request_id=name, prompt_token_ids=list(range(100, 100 + num_tokens)), params=params), 4
    )
    sequence.num_computed = computed
    sequence.blocks = list(range(10, 10 + -(-(computed + new) // 4)))
    return ScheduledSequence(sequence, new, samples=computed + new == num_tokens)


def test_decode_comes_first_and_long_before_short() -> None:
    items = [
        scheduled("prefill", 9, computed=0, new=9),
        scheduled("short", 3, computed=2, new=1),
        scheduled("long", 30, computed=29, new=1),
    ]
    assert [item.sequence.request_id for item in order_for_execution(items)] == ["long", "short", "prefill"]


def test_encoding_round_trips_with_anything_behind_it() -> None:
    plan = build_plan([scheduled("a", 6, computed=5, new=1), scheduled("b", 9, computed=2, new=7)])
    decoded = StepPlan.decode(np.concatenate((plan.encode(), np.full(50, -1, dtype=np.int32))))
    for field in ("num_new", "num_computed", "num_blocks", "logit_rows", "token_ids", "block_ids"):
        np.testing.assert_array_equal(getattr(decoded, field), getattr(plan, field))
    assert decoded.kind == StepKind.RUN
    assert decoded.token_ids.tolist() == [105, 102, 103, 104, 105, 106, 107, 108]


@pytest.mark.parametrize("kind", [StepKind.IDLE, StepKind.STOP])
def test_signals_round_trip(kind: StepKind) -> None:
    decoded = StepPlan.decode(StepPlan.signal(kind).encode())
    assert decoded.kind == kind
    assert decoded.num_sequences == 0


@pytest.mark.parametrize(
    ("computed", "new", "logprobs_from", "rows"),
    [
        (0, 8, None, (7, 8)),  # whole prompt: the last row samples
        (0, 5, None, (5, 5)),  # a chunk: no logits at all
        (0, 8, 0, (0, 8)),  # all log-probabilities: row p predicts token p + 1
        (0, 8, 3, (2, 8)),
        (4, 2, 3, (0, 2)),  # second chunk of three
        (0, 3, 6, (3, 3)),  # first chunk ends before the first wanted position
        (0, 8, 8, (7, 8)),  # starts behind the prompt: only the sample
    ],
)
def test_wanted_rows(computed: int, new: int, logprobs_from: int | None, rows: tuple[int, int]) -> None:
    plan = build_plan([scheduled("a", 8, computed=computed, new=new, logprobs_from=logprobs_from)])
    assert tuple(plan.logit_rows[0].tolist()) == rows

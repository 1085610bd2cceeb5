"""Log-likelihoods of given tokens by this project's engine without HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.errors import MeasurementError
from server.engine.engine import Engine
from server.request import EngineRequest, RequestOutput, SamplingParams


def score_prompts(engine: Engine, prompts: Sequence[list[int]], num_scored: Sequence[int]) -> list[float]:
    """By prompt, the sum of its last num_scored tokens' log-probabilities; as many prompts as there are of those.

    Raises MeasurementError.
    """
    now = time.monotonic()
    outputs = engine.add(
        EngineRequest(
            request_id=str(index),
            prompt_token_ids=prompt,
            params=SamplingParams(
                max_new_tokens=1,  # an engine always chooses a token; here it costs nothing but the choice
                temperature=0.0,
                ignore_eos=True,
                prompt_logprobs=0,
                prompt_logprobs_start=len(prompt) - count,
            ),
            arrival_time=now + index * 1e-6,  # so that those of one question run one after another
        )
        for index, (prompt, count) in enumerate(zip(prompts, num_scored, strict=False))
    )
    sums: dict[int, float] = {}
    while True:
        for output in outputs:
            sums[int(output.request_id)] = _sum(output)
        if not engine.has_work:
            return [sums[index] for index in range(len(sums))]
        outputs = engine.step()


def _sum(output: RequestOutput) -> float:
    if output.prompt_logprobs is None:
        raise MeasurementError(f"the engine refused request {output.request_id}: {output.error}")
    return sum(entry.logprob for entry in output.prompt_logprobs if entry is not None)

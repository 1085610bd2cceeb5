"""What one step costs the scheduler alone, by how many requests wait: it must not depend on that."""

from __future__ import annotations

import itertools
import time
from typing import Any

from benchmarks.aggregates import percentile
from server.engine.block_pool import BlockPool
from server.engine.scheduler import Scheduler, SchedulerLimits
from server.engine.sequence import Sequence
from server.request import EngineRequest, SamplingParams

NUM_WAITING = (1, 10, 100, 1000, 10_000)
_RUNNING = 64
_PROMPT_TOKENS = 256
_NEW_TOKENS = 16
_STEPS = 300
_BLOCK_SIZE = 16


class SchedulerLoad:
    """A scheduler whose queue stays as long as it is: for each request that ends another one comes."""

    def __init__(self, num_waiting: int) -> None:
        blocks = _RUNNING * -(-(_PROMPT_TOKENS + _NEW_TOKENS) // _BLOCK_SIZE)
        limits = SchedulerLimits(
            max_batched_tokens=1024,
            max_running_requests=_RUNNING,
            max_model_len=_PROMPT_TOKENS + _NEW_TOKENS,
            block_size=_BLOCK_SIZE,
        )
        self.scheduler = Scheduler(limits, BlockPool(blocks))
        self._ids = itertools.count()
        for _ in range(_RUNNING + num_waiting):
            self._arrive()

    def step(self) -> float:
        """Seconds of scheduling, of noting what was computed, and of arrivals and ends."""
        started = time.perf_counter()
        for item in self.scheduler.schedule():
            self.scheduler.computed(item)
            if not item.samples:
                continue
            item.sequence.append(0)
            if item.sequence.num_output_tokens == _NEW_TOKENS:
                self.scheduler.finish(item.sequence)
                self._arrive()
        return time.perf_counter() - started

    def _arrive(self) -> None:
        number = next(self._ids)
        # No two prompts share a block, so that every one is computed.
        prompt = [number * _PROMPT_TOKENS + position for position in range(_PROMPT_TOKENS)]
        request = EngineRequest(
            request_id=str(number),
            prompt_token_ids=prompt,
            params=SamplingParams(max_new_tokens=_NEW_TOKENS),
            arrival_time=float(number),
        )
        self.scheduler.add(Sequence(request, _BLOCK_SIZE))


def scheduler_step(num_waiting: int) -> dict[str, Any]:
    """Milliseconds of a step, median and p95, while 64 requests run and so many wait."""
    load = SchedulerLoad(num_waiting)
    for _ in range(_STEPS // 4):  # until prefills and decodes are mixed as they stay
        load.step()
    milliseconds = [load.step() * 1000 for _ in range(_STEPS)]
    return {
        "num_waiting": num_waiting,
        "step_ms": {"median": percentile(milliseconds, 50), "p95": percentile(milliseconds, 95)},
    }

"""This project's engine without HTTP: one rank, all requests there from the beginning."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import torch

from benchmarks.aggregates import StepTime
from benchmarks.errors import MeasurementError
from benchmarks.machine import peak_rss_bytes
from benchmarks.messages import Generate, Generated, Load, Loaded
from model_providers.parallel import join_world_of_one
from server.config import ResolvedDocument
from server.engine.build import build_rank
from server.engine.engine import Engine
from server.engine.warmup import warm_up
from server.request import EngineRequest, RequestOutput, SamplingParams


class EngineSubject:
    """Loaded as `server.engine.worker` loads a rank, so the figures for memory are those of serving."""

    def __init__(self, load: Load) -> None:
        rss_after_imports = psutil.Process().memory_info().rss
        document = ResolvedDocument.read(Path(load.model))
        torch.set_num_threads(load.threads)
        join_world_of_one()
        built = build_rank(document)
        warm_up(built)
        self._prompts = load.prompts
        self._engine = built.engine
        self.loaded = Loaded(
            load_seconds=built.load_seconds,
            rss_after_imports_bytes=rss_after_imports,
            rss_ready_bytes=psutil.Process().memory_info().rss,
            weights_bytes=built.weights_bytes,
        )

    def generate(self, command: Generate) -> Generated:
        """All prompts at once; the engine makes its own batches. Raises MeasurementError when one is refused."""
        cached_before = self._engine.stats().total_cached_tokens
        drain = _Drain(self._engine, len(self._prompts))
        started = time.perf_counter()
        drain.run(self._requests(command.max_new_tokens))
        seconds = time.perf_counter() - started
        return Generated(
            seconds=seconds,
            token_ids=drain.token_ids,
            peak_rss_bytes=peak_rss_bytes(os.getpid()),
            decode_steps=drain.decode_steps,
            cached_tokens=self._engine.stats().total_cached_tokens - cached_before,
        )

    def _requests(self, max_new_tokens: int) -> list[EngineRequest]:
        params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, ignore_eos=True)
        now = time.monotonic()
        return [
            EngineRequest(request_id=str(index), prompt_token_ids=prompt, params=params, arrival_time=now)
            for index, prompt in enumerate(self._prompts)
        ]


class _Drain:
    """Steps an engine until it has nothing left to do, and keeps what came of it."""

    def __init__(self, engine: Engine, num_requests: int) -> None:
        self._engine = engine
        self.token_ids: list[list[int]] = [[] for _ in range(num_requests)]
        self.decode_steps: list[StepTime] = []

    def run(self, requests: list[EngineRequest]) -> None:
        self._keep(self._engine.add(requests))
        while self._engine.has_work:
            before = self._engine.stats()
            started = time.perf_counter()
            outputs = self._engine.step()
            seconds = time.perf_counter() - started
            # Then every running sequence got a token that was not its first: nothing was prefilled.
            decoded_all = before.num_waiting == 0 and len(outputs) == before.num_running
            if decoded_all and all(self.token_ids[int(output.request_id)] for output in outputs):
                self.decode_steps.append(StepTime(seconds, len(outputs)))
            self._keep(outputs)

    def _keep(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            if output.error is not None:
                raise MeasurementError(f"the engine refused request {output.request_id}: {output.error}")
            self.token_ids[int(output.request_id)] += output.token_ids

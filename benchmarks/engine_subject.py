"""This project's engine without HTTP: one rank, all requests there from the beginning."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from pathlib import Path

import psutil
import torch

from benchmarks.aggregates import StepTime
from benchmarks.engine_scores import score_prompts
from benchmarks.errors import MeasurementError
from benchmarks.machine import peak_rss_bytes
from benchmarks.messages import Generate, Generated, Load, Loaded, Score, Scored
from image_preprocessing.limits import DEFAULT_LIMITS
from image_preprocessing.settings import ImageSettings
from model_providers.parallel import join_world_of_one
from server.config import ResolvedDocument
from server.engine.build import build_rank
from server.engine.engine import Engine
from server.engine.warmup import warm_up
from server.frontend.image_prompt import engine_image
from server.frontend.image_store import ImageStore
from server.request import EngineImage, EngineRequest, RequestOutput, SamplingParams


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
        self._pictures = load.pictures
        self._document = document
        self._engine = built.engine
        self.loaded = Loaded(
            load_seconds=built.load_seconds,
            rss_after_imports_bytes=rss_after_imports,
            rss_ready_bytes=psutil.Process().memory_info().rss,
            weights_bytes=built.weights_bytes,
        )

    def generate(self, command: Generate) -> Generated:
        """All prompts at once, or as many as are told; the engine makes its own batches. Nothing is kept between calls.

        Reading and preparing pictures is part of it. Raises MeasurementError when a prompt is refused.
        """
        self._engine.flush_prefix_cache()
        before = self._engine.stats()
        prompts = command.prompts or self._prompts
        drain = _Drain(self._engine, len(prompts))
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="megaserve-bench-") as directory:
            pictures = self._prepare_pictures(Path(directory), len(prompts))
            drain.run(self._requests(prompts, command.max_new_tokens, pictures), command.concurrency or len(prompts))
        seconds = time.perf_counter() - started
        stats = self._engine.stats()
        return Generated(
            seconds=seconds,
            token_ids=drain.token_ids,
            peak_rss_bytes=peak_rss_bytes(os.getpid()),
            decode_steps=drain.decode_steps,
            cached_tokens=stats.total_cached_tokens - before.total_cached_tokens,
            draft_tokens=stats.total_draft_tokens - before.total_draft_tokens,
            accepted_tokens=stats.total_accepted_tokens - before.total_accepted_tokens,
        )

    def score(self, command: Score) -> Scored:
        """All prompts at once; what they share is computed once where the engine's prefix cache is on."""
        self._engine.flush_prefix_cache()
        cached_before = self._engine.stats().total_cached_tokens
        started = time.perf_counter()
        logprobs = score_prompts(self._engine, self._prompts, command.num_scored_tokens)
        return Scored(
            seconds=time.perf_counter() - started,
            logprobs=logprobs,
            peak_rss_bytes=peak_rss_bytes(os.getpid()),
            cached_tokens=self._engine.stats().total_cached_tokens - cached_before,
        )

    def _prepare_pictures(self, directory: Path, num_prompts: int) -> list[tuple[EngineImage, ...]]:
        """Per prompt, its picture as the HTTP process would have prepared it."""
        if self._pictures is None:
            return [()] * num_prompts
        settings = ImageSettings.from_values(self._document.values)
        workers = len(os.sched_getaffinity(0))
        store = ImageStore(settings, DEFAULT_LIMITS, directory, max_bytes=2**31, num_workers=workers)
        stored = asyncio.run(store.hold([Path(file).read_bytes() for file in self._pictures.files], "pictures"))
        store.close()
        images = [engine_image(image, first_token=0) for image in stored]
        return [(images[index],) for index in self._pictures.of_prompt]

    @staticmethod
    def _requests(
        prompts: list[list[int]], max_new_tokens: int, images: list[tuple[EngineImage, ...]]
    ) -> list[EngineRequest]:
        params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, ignore_eos=True)
        now = time.monotonic()
        return [
            EngineRequest(request_id=str(index), prompt_token_ids=prompt, params=params, arrival_time=now, images=of_it)
            for index, (prompt, of_it) in enumerate(zip(prompts, images, strict=True))
        ]


class _Drain:
    """Steps an engine until it has nothing left to do, and keeps what came of it."""

    def __init__(self, engine: Engine, num_requests: int) -> None:
        self._engine = engine
        self.token_ids: list[list[int]] = [[] for _ in range(num_requests)]
        self.decode_steps: list[StepTime] = []

    def run(self, requests: list[EngineRequest], concurrency: int) -> None:
        """concurrency: requests under way at once; for each that ends another one begins."""
        waiting = iter(requests)
        self._keep(self._engine.add(itertools.islice(waiting, concurrency)))
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
            num_ended = sum(output.finish_reason is not None for output in outputs)
            self._keep(self._engine.add(itertools.islice(waiting, num_ended)))

    def _keep(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            if output.error is not None:
                raise MeasurementError(f"the engine refused request {output.request_id}: {output.error}")
            self.token_ids[int(output.request_id)] += output.token_ids

"""One rank that computes the same request in several ways: `torchrun ... invariance_rank.py DOCUMENTS RESULT`.

DOCUMENTS: files of resolved documents, with commas between them. RESULT, written by rank 0 with torch.save: for each
document {"vocab_size", "ways": {way: (tokens, vocabulary) logits, one row for each generated token}, "cached_tokens",
"images_encoded"}. Every request to a model that sees has a picture of its own.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from image_preprocessing.plan import plan_image
from image_preprocessing.settings import ImageSettings
from model_providers.kernels.library import Kernels
from model_providers.parallel import join_world, shutdown_parallel
from server.config import ResolvedDocument
from server.engine.build import BuiltRank, build_rank
from server.engine.engine import Engine
from server.engine.model_runner import follow
from server.engine.profiler import RankProfiler
from server.engine.sampler import Sampler
from server.engine.sequence import SampledToken, Sequence
from server.engine.step_plan import StepKind
from server.request import EngineImage, EngineRequest, SamplingParams

PROMPT_TOKENS, NEW_TOKENS = 90, 12
BEFORE_IMAGE = 5


class RecordingSampler(Sampler):
    """Keeps the logits of the request "target"."""

    def __init__(self, kernels: Kernels | None) -> None:
        super().__init__(kernels)
        self.rows: list[Tensor] = []

    def sample(self, logits: Tensor, sequences: Items[Sequence]) -> list[SampledToken]:
        self.rows += [logits[row].clone() for row, s in enumerate(sequences) if s.request_id == "target"]
        return super().sample(logits, sequences)


class Requests:
    """Makes requests of random tokens, with a random picture each where the model sees. directory: for their pixels."""

    def __init__(self, document: ResolvedDocument, vocab_size: int, directory: Path) -> None:
        self.vocab_size = vocab_size
        self._images = ImageSettings.from_values(document.values) if document.kind == "vlm" else None
        self._directory = directory

    def make(self, name: str, prompt_tokens: int, new_tokens: int, arrival: float) -> EngineRequest:
        rng = random.Random(name)
        images = () if self._images is None else (self._image(name, self._images),)
        tokens = max([prompt_tokens, *(image.first_token + image.num_tokens + 1 for image in images)])
        return EngineRequest(
            request_id=name,
            prompt_token_ids=[rng.randrange(self.vocab_size) for _ in range(tokens)],
            params=SamplingParams(max_new_tokens=new_tokens, temperature=0.0),
            arrival_time=arrival,
            images=images,
        )

    def neighbours(self) -> list[EngineRequest]:
        rng = random.Random(4)
        return [
            self.make(str(index), rng.randint(1, 30), rng.randint(3, 9), arrival=rng.random()) for index in range(31)
        ]

    def _image(self, name: str, settings: ImageSettings) -> EngineImage:
        plan = plan_image(settings.img_w, settings.img_h, settings)
        shape = (1, 3, settings.img_h, settings.img_w)
        file = self._directory / name
        np.random.default_rng(list(name.encode())).standard_normal(shape, dtype=np.float32).tofile(file)
        return EngineImage(
            digest=name, first_token=BEFORE_IMAGE, num_tokens=plan.num_tokens, pixels_file=str(file), shape=shape
        )


def logits_of_target(
    engine: Engine,
    target: EngineRequest,
    *,
    beside: Items[EngineRequest] = (),
    most_tokens: int,
    preempt: Items[int] = (),
) -> tuple[Tensor, int]:
    """-> logits, and how many of the prompt's tokens came from the prefix cache. preempt: numbers of steps."""
    scheduler = engine._scheduler
    scheduler.limits = replace(scheduler.limits, max_batched_tokens=most_tokens)
    sampler = engine._sampler = RecordingSampler(engine._kernels)
    engine.add([*beside, target])
    step = cached = 0
    while engine.has_work:
        sequence = scheduler._by_id.get("target")
        if step in preempt and sequence is not None:
            assert sequence.is_running, "a sequence that waits cannot be preempted"
            scheduler._preempt(sequence)
        for output in engine.step():
            assert output.error is None, output.error
            if output.request_id == "target":
                cached = output.num_cached_tokens
        step += 1
    return torch.stack(sampler.rows), cached


def in_every_way(built: BuiltRank, requests: Requests) -> dict[str, Any]:
    engine = built.engine
    many, target = requests.neighbours(), requests.make("target", PROMPT_TOKENS, NEW_TOKENS, arrival=0.5)
    ways: dict[str, Tensor] = {}
    ways["alone"], _ = logits_of_target(engine, target, most_tokens=1024)
    ways["from the prefix cache"], cached = logits_of_target(engine, target, most_tokens=1024)
    for way, options in {
        "in chunks": {"most_tokens": 37},
        "among others": {"beside": many, "most_tokens": 1024},
        "among others, in chunks": {"beside": many, "most_tokens": 53},
        "preempted": {"most_tokens": 64, "preempt": (1, 3, 7)},
    }.items():
        engine.flush_prefix_cache()
        ways[way], _ = logits_of_target(engine, target, **options)  # type: ignore[arg-type]
    encoded = engine.stats().total_images_encoded
    return {"vocab_size": requests.vocab_size, "ways": ways, "cached_tokens": cached, "images_encoded": encoded}


def main() -> None:
    documents, result = sys.argv[1].split(","), Path(sys.argv[2])
    join_world()
    outcomes = []
    for path in documents:
        document = ResolvedDocument.read(Path(path))
        torch.set_num_threads(document.values["threads"])
        built = build_rank(document)
        if dist.get_rank() == 0:
            with tempfile.TemporaryDirectory() as directory:
                requests = Requests(document, built.limits.vocab_size, Path(directory))
                outcomes.append(in_every_way(built, requests))
            built.engine.signal(StepKind.STOP)
        else:
            follow(built.runner, RankProfiler(None, dist.get_rank()))
    if dist.get_rank() == 0:
        torch.save(outcomes, result)
    shutdown_parallel()


if __name__ == "__main__":
    main()

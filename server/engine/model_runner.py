"""Executes step plans on one rank: model, KV cache, and the collectives that keep ranks in step."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from model_providers.backends.attention import AttentionBackend
from model_providers.backends.kv_cache import KVCache
from model_providers.gpt import ServingGPTModel
from server.engine.decode_graphs import DecodeGraphs
from server.engine.image_runner import ImageRunner
from server.engine.input_builder import build_input
from server.engine.input_transfer import transfer_to
from server.engine.profiler import RankProfiler
from server.engine.step_plan import Int32Array, StepKind, StepPlan

# int32 numbers that always travel; a longer plan (a large prefill) needs a second broadcast.
_FIRST_BROADCAST = 4096
# Logits that exist at once, 16 MiB of them: a long prompt's log-probabilities need rows times vocabulary, and larger
# blocks of memory are not kept from step to step, see `freed_memory`.
MOST_LOGITS = 2**22


class ModelRunner:
    """The model of one rank. All ranks call the same methods with the same plans, in the same order.

    plan_group: a CPU process group over the tensor-parallel ranks, None when there is one rank. images: for models that
    see. graphs: for decode steps, where there are any; `record_graphs` comes first.
    """

    def __init__(
        self,
        model: ServingGPTModel,
        cache: KVCache,
        attention: AttentionBackend,
        *,
        vocab_size: int,
        device: torch.device,
        world_size: int,
        plan_group: dist.ProcessGroup | None,
        images: ImageRunner | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.model = model
        self._cache = cache
        self._attention = attention
        self._vocab_size = vocab_size
        self._transfer = transfer_to(device)
        self._world_size = world_size
        self._plan_group = plan_group
        self._images = images
        self._graphs = graphs

    def record_graphs(self) -> None:
        """Before the first step, on all ranks. Raises ConfigurationError."""
        if self._graphs is not None:
            self._graphs.record()

    def execute(self, plan: StepPlan, pixels: Items[NDArray[np.float32]] = ()) -> Iterator[Tensor]:
        """Run the step on this rank; yield logits of the wanted rows, at most MOST_LOGITS at a time.

        pixels: of the plan's images to encode, on rank 0 alone. Each piece is (rows, vocab_size) float32 on rank 0 and
        (0, vocab_size) elsewhere. Every rank must exhaust the iterator: gathering the shards is a collective.
        """
        images = None if self._images is None else self._images.execute(plan, pixels)
        if self._graphs is not None and self._graphs.serves(plan):
            wanted = self._graphs.run(plan)
        else:
            step = build_input(plan, self._cache.block_size, self._transfer)
            metadata = step.metadata.with_images(images)
            wanted = self.model.forward_packed(step.token_ids, metadata, self._cache, self._attention, step.logit_rows)
        for hidden in torch.split(wanted, max(1, MOST_LOGITS // self._vocab_size)):
            yield self._gather_logits(self.model.compute_logits(hidden))

    def _gather_logits(self, shard: Tensor) -> Tensor:
        """Rank 0 gets the whole vocabulary. Rows of the padding are cut off, so no padded id can be sampled."""
        if self._world_size == 1:
            return shard[:, : self._vocab_size].float()
        logits = self.model.collectives.gather(shard)
        if logits is None:
            return shard.new_empty((0, self._vocab_size), dtype=torch.float32)
        return logits[:, : self._vocab_size].float()

    @property
    def encoder_seconds(self) -> float:
        """Time spent encoding images on this rank since start."""
        return 0.0 if self._images is None else self._images.seconds

    def broadcast_plan(self, plan: StepPlan | None) -> StepPlan:
        """Rank 0 gives its plan, the others None; all get rank 0's. One broadcast for all but large prefills.

        Raises RuntimeError when a rank is gone or silent for longer than the group's timeout.
        """
        if self._plan_group is None:
            assert plan is not None, "a single rank makes its own plans"
            return plan
        head = np.zeros(_FIRST_BROADCAST, dtype=np.int32)
        encoded = np.zeros(0, dtype=np.int32) if plan is None else plan.encode()
        head[0] = len(encoded)
        beginning = encoded[: _FIRST_BROADCAST - 1]
        head[1 : 1 + len(beginning)] = beginning
        self._broadcast(head)
        length = int(head[0])
        if length <= _FIRST_BROADCAST - 1:
            return plan or StepPlan.decode(head[1:])
        rest = encoded[_FIRST_BROADCAST - 1 :] if plan else np.zeros(length - _FIRST_BROADCAST + 1, dtype=np.int32)
        self._broadcast(rest)
        return plan or StepPlan.decode(np.concatenate((head[1:], rest)))

    def _broadcast(self, array: Int32Array) -> None:
        dist.broadcast(torch.from_numpy(array), src=0, group=self._plan_group)


def follow(runner: ModelRunner, profiler: RankProfiler) -> None:
    """What ranks other than 0 do: execute rank 0's plans until it says stop."""
    while True:
        plan = runner.broadcast_plan(None)
        match plan.kind:
            case StepKind.STOP:
                return
            case StepKind.RUN:
                for _ in runner.execute(plan):
                    pass
            case StepKind.START_PROFILE:
                profiler.start()
            case StepKind.STOP_PROFILE:
                profiler.stop()

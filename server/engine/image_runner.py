"""Encodes images on one rank and keeps their embeddings by slot; rank 0's plan says what to encode and what to drop."""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from model_providers.backends.step_metadata import ImageRows
from server.engine.step_plan import StepPlan


class SeesImages(Protocol):
    """What a model that sees offers beside a language model's forward pass."""

    def encode_images(
        self, pixels: Items[Tensor], imgs_sizes: Items[Items[tuple[int, int]]] | None = None
    ) -> list[Tensor]:
        """Each image's pixels -> its embeddings (tokens, hidden), the same on all ranks.

        imgs_sizes: per image the (height, width) of its patch grids, at dynamic resolution.
        """
        ...


class ImageRunner:
    """All ranks call `execute` with the same plans; pixels go from rank 0 to the others."""

    def __init__(self, model: SeesImages, device: torch.device, plan_group: dist.ProcessGroup | None) -> None:
        self._model = model
        self._device = device
        self._plan_group = plan_group
        self._embeddings: dict[int, Tensor] = {}
        self.seconds = 0.0

    @torch.inference_mode()
    def execute(self, plan: StepPlan, pixels: Items[NDArray[np.float32]]) -> ImageRows | None:
        """Evict, encode, and lay out the embeddings of the step's image rows; None when it has none."""
        for slot in plan.evicted.tolist():
            del self._embeddings[slot]
        if len(plan.encoded):
            started = time.monotonic()
            self._encode(plan, pixels)
            self.seconds += time.monotonic() - started
        if not len(plan.spans):
            return None
        rows = [torch.arange(first, first + count) for first, count, _, _ in plan.spans.tolist()]
        parts = [self._embeddings[slot][begin : begin + count] for _, count, slot, begin in plan.spans.tolist()]
        return ImageRows(torch.cat(rows).to(self._device), torch.cat(parts))

    def _encode(self, plan: StepPlan, pixels: Items[NDArray[np.float32]]) -> None:
        images, slots, sizes_of_images = [], [], []
        sizes = iter(plan.imgs_sizes.tolist())
        for index, (slot, num_sizes, num_axes, *shape) in enumerate(plan.encoded.tolist()):
            image = torch.from_numpy(pixels[index]) if pixels else torch.empty(shape[:num_axes], dtype=torch.float32)
            if self._plan_group is not None:
                dist.broadcast(image, src=0, group=self._plan_group)
            images.append(image.to(self._device))
            slots.append(slot)
            sizes_of_images.append([tuple(next(sizes)) for _ in range(num_sizes)])
        has_sizes = len(plan.imgs_sizes) > 0
        encoded = self._model.encode_images(images, sizes_of_images if has_sizes else None)
        for slot, embeddings in zip(slots, encoded, strict=True):
            self._embeddings[slot] = embeddings

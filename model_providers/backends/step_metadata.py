"""What attention must know about one step's packed batch.

The engine fills it once per step (`server.engine.input_builder`); every layer reads it. A step packs T tokens of S
sequences into one row of tokens, sequence after sequence: first those that contribute one token (decode), then those
that contribute more (prefill, whole or a chunk). A *slot* is one token's place in the KV cache: block number x block
size + offset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class ImageRows:
    """Packed rows that are images, not words. rows: (R,) int64. embeddings: (R, hidden), what takes their place."""

    rows: Tensor
    embeddings: Tensor


@dataclass(frozen=True)
class StepMetadata:
    """One step. Tensors are on the model's device, arrays with the host, where steps are planned.

    positions, slot_mapping: (T,) int64, per token. query_starts: (S + 1,) int32, where each sequence's tokens begin.
    kv_lengths: (S,) int32, tokens of each sequence including these. block_tables: (S, width) int32, 0 beyond a
    sequence's own blocks. images: None when no row is part of an image; token ids of image rows are ignored (but are
    valid ids).
    """

    positions: Tensor
    slot_mapping: Tensor
    query_starts: NDArray[np.int32]
    kv_lengths: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    images: ImageRows | None = None

    @classmethod
    def build(
        cls,
        num_new: NDArray[np.integer],
        num_computed: NDArray[np.integer],
        block_tables: NDArray[np.int32],
        *,
        block_size: int,
        device: torch.device,
    ) -> Self:
        """num_new, num_computed: (S,) tokens of each sequence in this step, and before it. No loop over tokens."""
        starts = np.concatenate(([0], np.cumsum(num_new, dtype=np.int64)))
        sequence_of_token = np.repeat(np.arange(len(num_new)), num_new)
        computed = num_computed.astype(np.int64)
        positions = computed[sequence_of_token] + np.arange(starts[-1]) - starts[sequence_of_token]
        blocks = block_tables[sequence_of_token, positions // block_size].astype(np.int64)
        return cls(
            positions=torch.from_numpy(positions).to(device, non_blocking=True),
            slot_mapping=torch.from_numpy(blocks * block_size + positions % block_size).to(device, non_blocking=True),
            query_starts=starts.astype(np.int32),
            kv_lengths=(num_computed + num_new).astype(np.int32),
            block_tables=np.ascontiguousarray(block_tables, dtype=np.int32),
        )

    @classmethod
    def of_prompt(cls, length: int, *, block_size: int, device: torch.device) -> Self:
        """One whole prompt in blocks 0, 1, 2 and so on."""
        table = np.arange(-(-length // block_size), dtype=np.int32)[None]
        return cls.build(np.array([length]), np.array([0]), table, block_size=block_size, device=device)

    def with_images(self, images: ImageRows | None) -> Self:
        return replace(self, images=images)

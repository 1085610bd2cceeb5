"""What attention must know about one step's packed batch.

The engine fills it once per step (`server.engine.input_builder`); every layer reads it. A step packs T tokens of S
sequences into one row of tokens, sequence after sequence: first those that contribute one token (decode), then those
that contribute more (prefill, whole or a chunk). A *slot* is one token's place in the KV cache: block number x block
size + offset.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class ImageRows:
    """Packed rows that are images, not words. rows: (R,) int64. embeddings: (R, hidden), what takes their place."""

    rows: Tensor
    embeddings: Tensor


class StepArrays(NamedTuple):
    """One step while it is still with the host; what the fields are, `StepMetadata` and `SequenceTensors` say."""

    positions: NDArray[np.int64]
    slot_mapping: NDArray[np.int64]
    query_starts: NDArray[np.int32]
    kv_starts: NDArray[np.int32]
    kv_lengths: NDArray[np.int32]
    block_tables: NDArray[np.int32]

    @classmethod
    def build(
        cls,
        num_new: NDArray[np.integer],
        num_computed: NDArray[np.integer],
        block_tables: NDArray[np.int32],
        *,
        block_size: int,
    ) -> Self:
        """num_new, num_computed: (S,) tokens of each sequence in this step, and before it. No loop over tokens."""
        starts = np.concatenate(([0], np.cumsum(num_new, dtype=np.int64)))
        sequence_of_token = np.repeat(np.arange(len(num_new)), num_new)
        computed = num_computed.astype(np.int64)
        positions = computed[sequence_of_token] + np.arange(starts[-1]) - starts[sequence_of_token]
        blocks = block_tables[sequence_of_token, positions // block_size].astype(np.int64)
        kv_lengths = (num_computed + num_new).astype(np.int32)
        return cls(
            positions=positions,
            slot_mapping=blocks * block_size + positions % block_size,
            query_starts=starts.astype(np.int32),
            kv_starts=np.concatenate(([0], np.cumsum(kv_lengths))).astype(np.int32),
            kv_lengths=kv_lengths,
            block_tables=np.ascontiguousarray(block_tables, dtype=np.int32),
        )


@dataclass(frozen=True)
class SequenceTensors:
    """A step's sequences as attention on a GPU reads them, all int32 and on the device.

    query_starts, kv_starts: (S + 1,), where each sequence's tokens of this step, and all its tokens, would begin if
    they lay sequence after sequence. kv_lengths: (S,). block_tables: (S, width). max_query_length, max_kv_length: no
    sequence has more tokens in this step, and in all.
    """

    query_starts: Tensor
    kv_starts: Tensor
    kv_lengths: Tensor
    block_tables: Tensor
    max_query_length: int
    max_kv_length: int


@dataclass(frozen=True)
class StepMetadata:
    """One step. Tensors are on the model's device, arrays with the host, where steps are planned.

    positions, slot_mapping: (T,) int64, per token. query_starts: (S + 1,) int32, where each sequence's tokens begin.
    kv_lengths: (S,) int32, tokens of each sequence including these. block_tables: (S, width) int32, 0 beyond a
    sequence's own blocks. sequences: the same on the device. images: None when no row is part of an image; token ids of
    image rows are ignored (but are valid ids).
    """

    positions: Tensor
    slot_mapping: Tensor
    query_starts: NDArray[np.int32]
    kv_lengths: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    sequences: SequenceTensors
    images: ImageRows | None = None

    @classmethod
    def of(cls, arrays: StepArrays, tensors: Items[Tensor]) -> Self:
        """tensors: the arrays on the device, in their order."""
        positions, slot_mapping, query_starts, kv_starts, kv_lengths, block_tables = tensors
        sequences = SequenceTensors(
            query_starts,
            kv_starts,
            kv_lengths,
            block_tables,
            max_query_length=int(np.diff(arrays.query_starts).max(initial=0)),
            max_kv_length=int(arrays.kv_lengths.max(initial=0)),
        )
        return cls(
            positions, slot_mapping, arrays.query_starts, arrays.kv_lengths, arrays.block_tables, sequences=sequences
        )

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
        """`StepArrays.build`, and each array copied to the device by itself."""
        arrays = StepArrays.build(num_new, num_computed, block_tables, block_size=block_size)
        return cls.of(arrays, [torch.from_numpy(array).to(device) for array in arrays])

    @classmethod
    def of_prompt(cls, length: int, *, block_size: int, device: torch.device) -> Self:
        """One whole prompt in blocks 0, 1, 2 and so on."""
        table = np.arange(-(-length // block_size), dtype=np.int32)[None]
        return cls.build(np.array([length]), np.array([0]), table, block_size=block_size, device=device)

    def with_images(self, images: ImageRows | None) -> Self:
        return replace(self, images=images)

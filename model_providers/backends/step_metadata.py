"""What attention must know about one step's packed batch.

The engine fills it once per step (`server.engine.input_builder`); every layer reads it. A step packs T tokens of many
sequences into one row of tokens: first the sequences that contribute one token (decode), then those that contribute
more (prefill, whole or a chunk). A *slot* is one token's place in the KV cache: block number x block size + offset.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DecodeGroup:
    """Decode rows of similar KV length, attended together.

    rows: their place in the packed tokens. blocks: (rows, width) int64, each row's block table, padded with block 0.
    padding: (rows, 1, 1, width * block_size), True where a place does not count.
    """

    rows: slice
    blocks: Tensor
    padding: Tensor


@dataclass(frozen=True)
class PrefillChunk:
    """Consecutive tokens of one sequence that attend to everything before them and, causally, to themselves.

    rows: their place in the packed tokens. kv_length: tokens of the sequence including these. blocks: (1, width) int64,
    None when the chunk is the whole sequence so far (then keys and values need not be read back from the cache).
    """

    rows: slice
    kv_length: int
    blocks: Tensor | None

    @property
    def query_length(self) -> int:
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True)
class ImageRows:
    """Packed rows that are images, not words. rows: (R,) int64. embeddings: (R, hidden), what takes their place."""

    rows: Tensor
    embeddings: Tensor


@dataclass(frozen=True)
class StepMetadata:
    """One step. positions, slot_mapping: (T,) int64. num_decode_rows: how many leading rows are decode.

    images: None when no row is part of an image. Token ids of image rows are ignored (but are valid ids).
    """

    positions: Tensor
    slot_mapping: Tensor
    num_decode_rows: int
    decode_groups: list[DecodeGroup]
    prefill_chunks: list[PrefillChunk]
    images: ImageRows | None = None

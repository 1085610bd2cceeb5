"""Attention made of stock torch operators: runs on any device and in any dtype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model_providers.backends.kv_cache import CacheLayout, KVCache
from model_providers.backends.rotary import RotaryAngles, RotaryTable, rotated_parts
from model_providers.backends.step_metadata import StepMetadata

# A decode row joins the group before it while it fills at least this share of the group's width: padding wastes reads,
# another group costs another call.
_LEAST_FILL = 0.7


@dataclass(frozen=True)
class DecodeGroup:
    """Decode rows of similar KV length, attended together.

    rows: their place in the packed tokens. pieces: see `KVCache.pieces_of_blocks`. padding: (rows, 1, 1, width *
    block_size), True where a place does not count.
    """

    rows: slice
    pieces: Tensor
    padding: Tensor


@dataclass(frozen=True)
class PrefillChunk:
    """Consecutive tokens of one sequence that attend to everything before them and, causally, to themselves.

    pieces: None when the chunk is the whole sequence so far (then keys and values need not be read back).
    """

    rows: slice
    kv_length: int
    pieces: Tensor | None

    @property
    def query_length(self) -> int:
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True)
class TorchPlan:
    """Places in the cache of the tokens a step writes, and of what each group and chunk reads."""

    written: Tensor
    decode: list[DecodeGroup]
    prefill: list[PrefillChunk]
    angles: RotaryAngles | None
    scale: float


class TorchAttention:
    """Gathers each sequence's keys and values from its blocks: one product per group of decode rows, one SDPA a chunk.

    The gathered copies lie in buffers that are kept: fresh memory of that size costs more than copying into it.
    """

    cache_layout = CacheLayout.HEAD_MAJOR
    is_capturable = False  # groups and chunks are cut on the host, by lengths

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def plan(
        self, step: StepMetadata, cache: KVCache, *, rotary: RotaryTable | None, queries_per_group: int, scale: float
    ) -> TorchPlan:
        """See `AttentionBackend.plan`."""
        num_decode = int(np.count_nonzero(np.diff(step.query_starts) == 1))
        return TorchPlan(
            written=cache.rows_of_slots(step.slot_mapping),
            decode=_decode_groups(step, num_decode, cache),
            prefill=[_prefill_chunk(step, index, cache) for index in range(num_decode, len(step.kv_lengths))],
            angles=None if rotary is None else rotary.at(step.positions, cache.dtype),
            scale=scale,
        )

    def attend(self, qkv: Tensor, *, layer: int, cache: KVCache, plan: TorchPlan) -> Tensor:
        """See `AttentionBackend.attend`."""
        query, key, value = rotated_parts(qkv, plan.angles)
        cache.write(layer, plan.written, key, value)
        out = torch.empty_like(query)
        for group in plan.decode:
            keys, values = self._gather(cache, layer, group.pieces, len(group.padding))
            out[group.rows] = _attend_decode(query[group.rows], keys, values, group, plan.scale)
        for chunk in plan.prefill:
            if chunk.pieces is None:
                keys, values = (new[chunk.rows].transpose(0, 1)[None] for new in (key, value))
            else:
                keys, values = (part[:, :, : chunk.kv_length] for part in self._gather(cache, layer, chunk.pieces, 1))
            out[chunk.rows] = _attend_prefill(query[chunk.rows], keys, values, chunk, plan.scale)
        return out.flatten(1)

    def _gather(self, cache: KVCache, layer: int, pieces: Tensor, num_sequences: int) -> list[Tensor]:
        """Keys and values, each (num_sequences, kv_heads, width * block_size, head_dim); good until the next call."""
        gathered = []
        for name, cached in (("keys", cache.keys[layer]), ("values", cache.values[layer])):
            source = cached.view(cache.num_blocks * cache.num_kv_heads, -1)
            if name not in self._buffers or len(self._buffers[name]) < len(pieces):
                self._buffers[name] = source.new_empty(len(pieces) * 5 // 4, source.shape[1])
            out = self._buffers[name][: len(pieces)]
            torch.index_select(source, 0, pieces, out=out)
            gathered.append(out.view(num_sequences, cache.num_kv_heads, -1, cache.head_dim))
        return gathered


def _decode_groups(step: StepMetadata, num_decode: int, cache: KVCache) -> list[DecodeGroup]:
    """Lengths of decode rows fall, so a group's first row is its widest."""
    lengths = step.kv_lengths[:num_decode]
    groups = []
    begin = 0
    while begin < num_decode:
        end = begin + int(np.count_nonzero(lengths[begin:] >= _LEAST_FILL * lengths[begin]))
        groups.append(_decode_group(slice(begin, end), lengths[begin:end], step.block_tables[begin:end], cache))
        begin = end
    return groups


def _decode_group(rows: slice, lengths: NDArray[np.int32], tables: NDArray[np.int32], cache: KVCache) -> DecodeGroup:
    width = -(-int(lengths[0]) // cache.block_size)
    blocks = np.where(np.arange(width) * cache.block_size < lengths[:, None], tables[:, :width], 0)
    padding = np.arange(width * cache.block_size) >= lengths[:, None]
    pieces = cache.pieces_of_blocks(_on_device(blocks, cache))
    return DecodeGroup(rows, pieces, _on_device(padding, cache)[:, None, None, :])


def _prefill_chunk(step: StepMetadata, index: int, cache: KVCache) -> PrefillChunk:
    begin, end = int(step.query_starts[index]), int(step.query_starts[index + 1])
    kv_length = int(step.kv_lengths[index])
    pieces = None
    if kv_length > end - begin:
        blocks = step.block_tables[index : index + 1, : -(-kv_length // cache.block_size)]
        pieces = cache.pieces_of_blocks(_on_device(blocks, cache))
    return PrefillChunk(slice(begin, end), kv_length, pieces)


def _on_device(array: NDArray[np.generic], cache: KVCache) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(cache.device, non_blocking=True)


def _attend_decode(query: Tensor, keys: Tensor, values: Tensor, group: DecodeGroup, scale: float) -> Tensor:
    """query (rows, heads, head_dim), keys and values (rows, kv_heads, length, head_dim) -> query's shape, in float32.

    The query heads that share a KV head are the rows of one product, so keys are not repeated per head.
    """
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, head_dim).float()
    scores = torch.matmul(grouped, keys.float().transpose(-1, -2)).mul_(scale)
    weights = scores.masked_fill_(group.padding, float("-inf")).softmax(-1)
    out = torch.matmul(weights, values.float())
    return out.reshape(rows, heads, head_dim).to(query.dtype)


def _attend_prefill(query: Tensor, keys: Tensor, values: Tensor, chunk: PrefillChunk, scale: float) -> Tensor:
    """query (query_length, heads, head_dim), keys and values (1, kv_heads, kv_length, head_dim) -> query's shape."""
    num_computed = chunk.kv_length - chunk.query_length
    mask = None
    if num_computed:
        mask = torch.ones(chunk.query_length, chunk.kv_length, dtype=torch.bool, device=query.device).tril(num_computed)
    out = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return out[0].transpose(0, 1)

"""Attention over the paged KV cache.

`AttentionBackend` is the seam: one implementation per kind of hardware, chosen once at start. `TorchAttention` is made
of stock torch operators and runs anywhere.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model_providers.backends.kv_cache import KVCache
from model_providers.backends.step_metadata import DecodeGroup, PrefillChunk, StepMetadata


class AttentionBackend(Protocol):
    """Attends each packed query to the keys and values of its own sequence."""

    def plan(self, step: StepMetadata, cache: KVCache) -> Any:
        """What all layers of a step share, computed once."""
        ...

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, cache: KVCache, plan: Any, scale: float
    ) -> Tensor:
        """query (T, heads, head_dim), key and value (T, kv_heads, head_dim), already rotated -> (T, heads * head_dim).

        Writes key and value into the cache first. `layer` counts from 0. plan: what `plan` returned for the step.
        """
        ...


class _TorchPlan:
    """Places in the cache of the tokens a step writes, and of what each group and chunk reads."""

    def __init__(self, step: StepMetadata, cache: KVCache) -> None:
        self.written = cache.rows_of_slots(step.slot_mapping)
        self.decode = [(group, cache.pieces_of_blocks(group.blocks)) for group in step.decode_groups]
        self.prefill = [
            (chunk, None if chunk.blocks is None else cache.pieces_of_blocks(chunk.blocks))
            for chunk in step.prefill_chunks
        ]


class TorchAttention:
    """Gathers each sequence's keys and values from its blocks: one product per group of decode rows, one SDPA a chunk.

    The gathered copies lie in buffers that are kept: fresh memory of that size costs more than copying into it.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def plan(self, step: StepMetadata, cache: KVCache) -> _TorchPlan:
        """See `AttentionBackend.plan`."""
        return _TorchPlan(step, cache)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, cache: KVCache, plan: _TorchPlan, scale: float
    ) -> Tensor:
        """See `AttentionBackend.attend`."""
        cache.write(layer, plan.written, key, value)
        out = torch.empty_like(query)
        for group, pieces in plan.decode:
            keys, values = self._gather(cache, layer, pieces, len(group.blocks))
            out[group.rows] = _attend_decode(query[group.rows], keys, values, group, scale)
        for chunk, own_pieces in plan.prefill:
            if own_pieces is None:
                keys, values = (new[chunk.rows].transpose(0, 1)[None] for new in (key, value))
            else:
                keys, values = (part[:, :, : chunk.kv_length] for part in self._gather(cache, layer, own_pieces, 1))
            out[chunk.rows] = _attend_prefill(query[chunk.rows], keys, values, chunk, scale)
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

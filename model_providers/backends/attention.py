"""Attention over the paged KV cache.

`AttentionBackend` is the seam: one implementation per kind of hardware, chosen once at start. `TorchAttention` is made
of stock torch operators and runs anywhere.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model_providers.backends.kv_cache import KVCache
from model_providers.backends.step_metadata import DecodeGroup, PrefillChunk, StepMetadata


class AttentionBackend(Protocol):
    """Attends each packed query to the keys and values of its own sequence."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, cache: KVCache, step: StepMetadata, scale: float
    ) -> Tensor:
        """query (T, heads, head_dim), key and value (T, kv_heads, head_dim), already rotated -> (T, heads * head_dim).

        Writes key and value into the cache at step.slot_mapping first. `layer` counts from 0.
        """
        ...


class TorchAttention:
    """SDPA over gathered keys and values: one call per group of decode rows, one per prefill chunk."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, layer: int, cache: KVCache, step: StepMetadata, scale: float
    ) -> Tensor:
        """See `AttentionBackend.attend`."""
        cache.write(layer, step.slot_mapping, key, value)
        out = torch.empty_like(query)
        keys, values = cache.keys[layer], cache.values[layer]
        for group in step.decode_groups:
            out[group.rows] = _attend_decode(query[group.rows], keys, values, group, scale)
        for chunk in step.prefill_chunks:
            if chunk.slots is None:
                chunk_keys, chunk_values = key[chunk.rows], value[chunk.rows]
            else:
                chunk_keys, chunk_values = keys.index_select(0, chunk.slots), values.index_select(0, chunk.slots)
            out[chunk.rows] = _attend_prefill(query[chunk.rows], chunk_keys, chunk_values, chunk, scale)
        return out.flatten(1)


def _attend_decode(query: Tensor, keys: Tensor, values: Tensor, group: DecodeGroup, scale: float) -> Tensor:
    """query (rows, heads, head_dim) -> the same shape.

    The query heads that share a KV head are laid out as SDPA's query dimension, so keys are not repeated per head.
    """
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    gathered_keys = keys.index_select(0, group.slots).view(rows, -1, kv_heads, head_dim).transpose(1, 2)
    gathered_values = values.index_select(0, group.slots).view(rows, -1, kv_heads, head_dim).transpose(1, 2)
    grouped_query = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
    bias = None if group.bias is None else group.bias.to(query.dtype)
    out = scaled_dot_product_attention(grouped_query, gathered_keys, gathered_values, attn_mask=bias, scale=scale)
    return out.reshape(rows, heads, head_dim)


def _attend_prefill(query: Tensor, keys: Tensor, values: Tensor, chunk: PrefillChunk, scale: float) -> Tensor:
    """query (query_length, heads, head_dim), keys and values (kv_length, kv_heads, head_dim) -> query's shape."""
    num_computed = chunk.kv_length - chunk.query_length
    mask = None
    if num_computed:
        mask = torch.ones(chunk.query_length, chunk.kv_length, dtype=torch.bool, device=query.device).tril(num_computed)
    out = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return out[0].transpose(0, 1)

"""How Megatron lays out the fused tensors that Hugging Face keeps apart."""

from __future__ import annotations

import torch


def fuse_qkv(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, num_query_groups: int) -> torch.Tensor:
    """Interleave per KV group as [q.., k, v], so that a cut among tensor-parallel ranks keeps groups whole.

    query: (heads * head_dim, ...), key and value: (num_query_groups * head_dim, ...), weights or biases alike.
    Returns (heads * head_dim + 2 * num_query_groups * head_dim, ...). Source: megatron/core/transformer/attention.py,
    SelfAttention.get_query_key_value_tensors.
    """
    grouped = [part.reshape(num_query_groups, -1, *part.shape[1:]) for part in (query, key, value)]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def fuse_gate_up(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """[gate; up] along the rows: (2 * ffn_hidden_size, hidden_size). Source: megatron/core/transformer/mlp.py, glu."""
    return torch.cat([gate, up], dim=0)

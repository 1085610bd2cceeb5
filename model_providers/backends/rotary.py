"""Rotary position embedding by packed positions.

The frequencies come from Megatron's RotaryEmbedding (which knows about scaling, interpolation and rotary_percent);
only the lookup by position and the rotation are ours.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from torch import Tensor


class RotaryTable:
    """Cosines and sines of every position up to max_positions, in float32: each (max_positions, rotary_dim / 2)."""

    def __init__(self, rotary: RotaryEmbedding, max_positions: int) -> None:
        frequencies = rotary.get_freqs_non_repeated(max_positions)
        self.interleaved: bool = rotary.rotary_interleaved
        self.cosines = frequencies.cos()
        self.sines = frequencies.sin()

    def at(self, positions: Tensor, dtype: torch.dtype) -> RotaryAngles:
        """Angles of the packed tokens, looked up once per step."""
        cosines = self.cosines[positions].to(dtype)
        sines = self.sines[positions].to(dtype)
        return RotaryAngles(cosines[:, None, :], sines[:, None, :], self.interleaved)


class RotaryAngles:
    """cosines, sines: (T, 1, rotary_dim / 2), broadcast over heads."""

    def __init__(self, cosines: Tensor, sines: Tensor, interleaved: bool) -> None:
        self.cosines = cosines
        self.sines = sines
        self.interleaved = interleaved
        self.rotary_dim = 2 * cosines.shape[-1]

    def rotate(self, heads: Tensor) -> Tensor:
        """(T, heads, head_dim) -> the same; dimensions beyond rotary_dim pass through."""
        rotated, passed = heads[..., : self.rotary_dim], heads[..., self.rotary_dim :]
        if self.interleaved:
            first, second = rotated[..., 0::2], rotated[..., 1::2]
        else:
            first, second = rotated.chunk(2, dim=-1)
        new_first = first * self.cosines - second * self.sines
        new_second = second * self.cosines + first * self.sines
        if self.interleaved:
            return torch.cat((torch.stack((new_first, new_second), dim=-1).flatten(-2), passed), dim=-1)
        return torch.cat((new_first, new_second, passed), dim=-1)


class Heads(NamedTuple):
    """query: (T, heads, head_dim). key, value: (T, kv_heads, head_dim)."""

    query: Tensor
    key: Tensor
    value: Tensor


def rotated_parts(qkv: Tensor, angles: RotaryAngles | None) -> Heads:
    """qkv (T, kv_heads, queries of a KV head + 2, head_dim) -> its parts, queries and keys rotated by the angles."""
    num_tokens, kv_heads, width, head_dim = qkv.shape
    query_and_key = qkv[:, :, :-1]
    if angles is not None:
        rotated = angles.rotate(query_and_key.reshape(num_tokens, -1, head_dim))
        query_and_key = rotated.view(num_tokens, kv_heads, width - 1, head_dim)
    return Heads(
        query=query_and_key[:, :, :-1].reshape(num_tokens, -1, head_dim),
        key=query_and_key[:, :, -1],
        value=qkv[:, :, -1],
    )

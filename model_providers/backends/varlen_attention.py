"""Attention on NVIDIA GPUs by torch's `varlen_attn`: FlashAttention over the paged KV cache, all sequences in one call.

The kernels read lengths and block tables on the device, so a CUDA graph of a step serves every step of its shape.
Source: torch.nn.attention.varlen of torch 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor

from model_providers.backends.kv_cache import CacheLayout, KVCache
from model_providers.backends.rotary import RotaryAngles, RotaryTable, rotated_parts
from model_providers.backends.step_metadata import SequenceTensors, StepMetadata

# Each query sees the keys up to its own, counted from the ends of both: what `varlen_attn` takes for causal.
_CAUSAL = (-1, 0)


class VarlenFunction(Protocol):
    """`torch.nn.attention.varlen.varlen_attn`, as far as it is used here.

    query (T, heads, head_dim), key and value (num_blocks, block_size, kv_heads, head_dim) -> (T, heads, head_dim).
    cu_seq_q, cu_seq_k (S + 1,), seqused_k (S,) and block_table (S, width): int32.
    """

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
        enable_gqa: bool,
        seqused_k: Tensor,
        block_table: Tensor,
        num_splits: int,
    ) -> Tensor: ...


@dataclass(frozen=True)
class VarlenPlan:
    """rows: see `KVCache.rows_of_slots`."""

    sequences: SequenceTensors
    rows: Tensor
    angles: RotaryAngles | None
    scale: float


class VarlenAttention:
    """One FlashAttention call for decode and prefill together."""

    cache_layout = CacheLayout.TOKEN_MAJOR
    is_capturable = True

    def __init__(self, varlen: VarlenFunction) -> None:
        self._varlen = varlen

    def plan(
        self, step: StepMetadata, cache: KVCache, *, rotary: RotaryTable | None, queries_per_group: int, scale: float
    ) -> VarlenPlan:
        """See `AttentionBackend.plan`."""
        angles = None if rotary is None else rotary.at(step.positions, cache.dtype)
        return VarlenPlan(step.sequences, cache.rows_of_slots(step.slot_mapping), angles, scale)

    def attend(self, qkv: Tensor, *, layer: int, cache: KVCache, plan: VarlenPlan) -> Tensor:
        """See `AttentionBackend.attend`."""
        query, key, value = rotated_parts(qkv, plan.angles)
        cache.write(layer, plan.rows, key, value)
        sequences = plan.sequences
        out = self._varlen(
            query,
            cache.keys[layer],
            cache.values[layer],
            sequences.query_starts,
            sequences.kv_starts,
            sequences.max_query_length,
            sequences.max_kv_length,
            scale=plan.scale,
            window_size=_CAUSAL,
            enable_gqa=query.shape[1] != key.shape[1],
            seqused_k=sequences.kv_lengths,
            block_table=sequences.block_tables,
            # More than one gives wrong results over block tables: https://github.com/pytorch/pytorch/issues/194167.
            # With one, torch promises a sequence the same bits whatever the others in the call are.
            num_splits=1,
        )
        return out.flatten(1)


def torch_varlen_attention() -> VarlenAttention:
    """By torch's own kernels."""
    # Imports torch._dynamo, which takes seconds.
    from torch.nn.attention.varlen import varlen_attn

    return VarlenAttention(cast(VarlenFunction, varlen_attn))  # a pair is returned only to those who ask for one

"""Attention by the CPU kernels: rotation, cache write and attention of a layer in one call, without gathering."""

from __future__ import annotations

from torch import Tensor

from model_providers.backends.kv_cache import CacheLayout, KVCache
from model_providers.backends.rotary import RotaryTable
from model_providers.backends.step_metadata import StepMetadata
from model_providers.kernels.attention_step import AttentionStep
from model_providers.kernels.library import Kernels


class KernelAttention:
    """A query's result depends on its own sequence alone, to the last bit: not on the batch, nor on chunks."""

    cache_layout = CacheLayout.TRANSPOSED_KEYS
    is_capturable = False

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def plan(
        self, step: StepMetadata, cache: KVCache, *, rotary: RotaryTable | None, queries_per_group: int, scale: float
    ) -> AttentionStep:
        """See `AttentionBackend.plan`."""
        plan = AttentionStep(
            query_starts=step.query_starts,
            kv_lengths=step.kv_lengths,
            block_tables=step.block_tables,
            slots=step.slot_mapping,
            positions=step.positions,
            cosines=None if rotary is None else rotary.cosines,
            sines=None if rotary is None else rotary.sines,
            num_kv_heads=cache.num_kv_heads,
            group=queries_per_group,
            head_dim=cache.head_dim,
            block_size=cache.block_size,
            interleaved=rotary is not None and rotary.interleaved,
            scale=scale,
        )
        self._kernels.plan_attention(plan)
        return plan

    def attend(self, qkv: Tensor, *, layer: int, cache: KVCache, plan: AttentionStep) -> Tensor:
        """See `AttentionBackend.attend`."""
        return self._kernels.attend(plan, qkv, cache.keys[layer], cache.values[layer])

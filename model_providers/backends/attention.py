"""The seam for attention over the paged KV cache, and the choice among its implementations."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from model_providers.backends.kernel_attention import KernelAttention
from model_providers.backends.kv_cache import KVCache
from model_providers.backends.rotary import RotaryTable
from model_providers.backends.step_metadata import StepMetadata
from model_providers.backends.torch_attention import TorchAttention
from model_providers.config import ModelConfig
from model_providers.kernels.library import kernels_for


class AttentionBackend(Protocol):
    """Attends each packed query to the keys and values of its own sequence."""

    @property
    def transposed_keys(self) -> bool:
        """How the cache must keep its keys, see `KVCache`."""
        ...

    def plan(
        self, step: StepMetadata, cache: KVCache, *, rotary: RotaryTable | None, queries_per_group: int, scale: float
    ) -> Any:
        """What all layers of a step share, computed once. queries_per_group: query heads that share a KV head."""
        ...

    def attend(self, qkv: Tensor, *, layer: int, cache: KVCache, plan: Any) -> Tensor:
        """qkv (T, kv_heads, queries_per_group + 2, head_dim): per KV head its queries, its key, its value.

        Rotates queries and keys, writes keys and values into the cache, attends -> (T, heads * head_dim). `layer`
        counts from 0. plan: what `plan` returned for the step. qkv may be changed.
        """
        ...


def attention_for(config: ModelConfig) -> AttentionBackend:
    """The fastest that this device, this dtype and --kernels allow."""
    kernels = kernels_for(config.kernels, config.dtype, config.device)
    return TorchAttention() if kernels is None else KernelAttention(kernels)

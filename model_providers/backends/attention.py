"""The seam for attention over the paged KV cache, and the choice among its implementations."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from model_providers.backends.kernel_attention import KernelAttention
from model_providers.backends.kv_cache import CacheLayout, KVCache
from model_providers.backends.rotary import RotaryTable
from model_providers.backends.step_metadata import StepMetadata
from model_providers.backends.torch_attention import TorchAttention
from model_providers.backends.varlen_attention import torch_varlen_attention
from model_providers.backends.varlen_limits import varlen_serves
from model_providers.config import ModelConfig
from model_providers.kernels.library import kernels_for


class AttentionBackend(Protocol):
    """Attends each packed query to the keys and values of its own sequence."""

    @property
    def cache_layout(self) -> CacheLayout:
        """How the cache must keep keys and values."""
        ...

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph of one decode step serves others: `plan` and `attend` read nothing of it on the host."""
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
    if kernels is not None:
        return KernelAttention(kernels)
    if serves_by_varlen(config, compute_capability(config.device)):
        return torch_varlen_attention()
    return TorchAttention()


def serves_by_varlen(config: ModelConfig, capability: tuple[int, int] | None) -> bool:
    """Whether FlashAttention can serve this model on a device of this compute capability, and --kernels lets it."""
    return config.kernels != "off" and varlen_serves(
        half_precision=config.dtype in (torch.float16, torch.bfloat16),
        head_dim=config.values["kv_channels"],
        capability=capability,
    )


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """Of an NVIDIA GPU; None for everything else."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    return torch.cuda.get_device_capability(device)

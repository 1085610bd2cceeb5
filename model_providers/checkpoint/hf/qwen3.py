"""Qwen3: Llama with an RMSNorm over each query and key head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model_providers.checkpoint.hf.family import NamedTensor
from model_providers.checkpoint.hf.llama import Llama
from model_providers.checkpoint.hf.qwen2 import require_full_attention
from model_providers.checkpoint.hf.source import TensorSource


class Qwen3(Llama):
    def check(self, config: Any) -> None:
        super().check(config)
        require_full_attention(config)

    def megatron_flags(self, config: Any) -> list[str]:
        return [*super().megatron_flags(config), "--qk-layernorm"]

    def layer(self, source: TensorSource, theirs: str, ours: str) -> Iterator[NamedTensor]:
        yield from super().layer(source, theirs, ours)
        for part in "qk":
            norm = source.take(f"{theirs}self_attn.{part}_norm.weight")  # (head_dim,)
            yield NamedTensor(f"{ours}self_attention.{part}_layernorm.weight", norm)

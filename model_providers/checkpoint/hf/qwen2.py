"""Qwen2 and Qwen2.5: Llama with a bias on the QKV projection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model_providers.checkpoint.hf.family import NamedTensor, require
from model_providers.checkpoint.hf.llama import Llama
from model_providers.checkpoint.hf.source import TensorSource
from model_providers.errors import UnsupportedModelError


class Qwen2(Llama):
    def check(self, config: Any) -> None:
        require(config, "hidden_act", "silu")
        require_full_attention(config)

    def megatron_flags(self, config: Any) -> list[str]:
        return [*super().megatron_flags(config), "--add-qkv-bias"]

    def layer(self, source: TensorSource, theirs: str, ours: str) -> Iterator[NamedTensor]:
        yield from super().layer(source, theirs, ours)
        yield NamedTensor(ours + "self_attention.linear_qkv.bias", self.qkv(source, theirs, "bias"))


def require_full_attention(config: Any) -> None:
    """`layer_types` is what decides; transformers derives it from use_sliding_window and max_window_layers."""
    others = sorted(set(config.layer_types) - {"full_attention"})
    if others:
        raise UnsupportedModelError("layer_types", f"{', '.join(others)} is not supported, only full_attention")

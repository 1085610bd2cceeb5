"""Llama and what shares its shape, SmolLM among them: RMSNorm, SwiGLU, rotary positions, KV groups, no biases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from model_providers.checkpoint.hf.family import NamedTensor, output_layer, require
from model_providers.checkpoint.hf.layout import fuse_gate_up, fuse_qkv
from model_providers.checkpoint.hf.rope import rope_flags
from model_providers.checkpoint.hf.source import TensorSource


class Llama:
    """Also the base of the families that differ from it in a detail."""

    multimodal = False

    def megatron_flags(self, config: Any) -> list[str]:
        self.check(config)
        flags = {
            "--num-layers": config.num_hidden_layers,
            "--hidden-size": config.hidden_size,
            "--ffn-hidden-size": config.intermediate_size,
            "--num-attention-heads": config.num_attention_heads,
            "--num-query-groups": config.num_key_value_heads,
            "--kv-channels": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            "--max-position-embeddings": config.max_position_embeddings,
            "--seq-length": config.max_position_embeddings,
            "--normalization": "RMSNorm",
            "--norm-epsilon": config.rms_norm_eps,
            "--attention-dropout": config.attention_dropout,
            "--hidden-dropout": 0.0,
        }
        switches = ["--group-query-attention", "--swiglu", "--disable-bias-linear"]
        if not config.tie_word_embeddings:
            switches.append("--untie-embeddings-and-output-weights")
        return [*(str(part) for item in flags.items() for part in item), *switches, *rope_flags(config)]

    def check(self, config: Any) -> None:
        """Raise UnsupportedModelError for options that Megatron's GPTModel lacks."""
        require(config, "hidden_act", "silu")
        require(config, "attention_bias", False, None)  # it would be on QKV and output; Megatron has QKV or all layers
        require(config, "mlp_bias", False, None)

    def tensors(self, source: TensorSource) -> Iterator[NamedTensor]:
        embedding = source.take("model.embed_tokens.weight")
        yield NamedTensor("embedding.word_embeddings.weight", embedding)
        for layer in range(source.config.num_hidden_layers):
            yield from self.layer(source, f"model.layers.{layer}.", f"decoder.layers.{layer}.")
        yield NamedTensor("decoder.final_layernorm.weight", source.take("model.norm.weight"))
        yield from output_layer(source, embedding)

    def layer(self, source: TensorSource, theirs: str, ours: str) -> Iterator[NamedTensor]:
        """One transformer layer; `theirs` and `ours` are the prefixes of its names."""
        take = source.take
        yield NamedTensor(ours + "input_layernorm.weight", take(theirs + "input_layernorm.weight"))
        yield NamedTensor(ours + "self_attention.linear_qkv.weight", self.qkv(source, theirs, "weight"))
        yield NamedTensor(ours + "self_attention.linear_proj.weight", take(theirs + "self_attn.o_proj.weight"))
        yield NamedTensor(ours + "pre_mlp_layernorm.weight", take(theirs + "post_attention_layernorm.weight"))
        gate, up = take(theirs + "mlp.gate_proj.weight"), take(theirs + "mlp.up_proj.weight")
        yield NamedTensor(ours + "mlp.linear_fc1.weight", fuse_gate_up(gate, up))
        yield NamedTensor(ours + "mlp.linear_fc2.weight", take(theirs + "mlp.down_proj.weight"))

    def qkv(self, source: TensorSource, theirs: str, kind: str) -> torch.Tensor:
        """The fused QKV projection's weight or bias, as `kind` says."""
        query, key, value = (source.take(f"{theirs}self_attn.{part}_proj.{kind}") for part in "qkv")
        return fuse_qkv(query, key, value, source.config.num_key_value_heads)

    def is_ignorable(self, name: str, config: Any) -> bool:
        return name.endswith("rotary_emb.inv_freq")  # a buffer in old exports, computed from rope_theta

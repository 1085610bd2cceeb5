"""GPT-2: LayerNorm, GELU, learned positions, biases everywhere, weights stored (in, out)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from model_providers.checkpoint.hf.family import NamedTensor, output_layer, require
from model_providers.checkpoint.hf.layout import fuse_qkv
from model_providers.checkpoint.hf.source import TensorSource

# Megatron's GELU is the tanh approximation where it is fused with the bias (its default), and exact where it is not.
_TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
_EXACT_GELU = ("gelu",)
_LINEARS = {"self_attention.linear_proj": "attn.c_proj", "mlp.linear_fc1": "mlp.c_fc", "mlp.linear_fc2": "mlp.c_proj"}
_MASK_BUFFER = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)")


class Gpt2:
    multimodal = False

    def megatron_flags(self, config: Any) -> list[str]:
        require(config, "activation_function", *_TANH_GELU, *_EXACT_GELU)
        require(config, "scale_attn_weights", True)
        require(config, "scale_attn_by_inverse_layer_idx", False)
        require(config, "add_cross_attention", False)
        flags = {
            "--num-layers": config.n_layer,
            "--hidden-size": config.n_embd,
            "--ffn-hidden-size": config.n_inner or 4 * config.n_embd,
            "--num-attention-heads": config.n_head,
            "--max-position-embeddings": config.n_positions,
            "--seq-length": config.n_positions,
            "--position-embedding-type": "learned_absolute",
            "--normalization": "LayerNorm",
            "--norm-epsilon": config.layer_norm_epsilon,
            "--attention-dropout": config.attn_pdrop,
            "--hidden-dropout": config.resid_pdrop,
        }
        switches = ["--no-bias-gelu-fusion"] if config.activation_function in _EXACT_GELU else []
        if not config.tie_word_embeddings:
            switches.append("--untie-embeddings-and-output-weights")
        return [*(str(part) for item in flags.items() for part in item), *switches]

    def tensors(self, source: TensorSource) -> Iterator[NamedTensor]:
        # The published files lack the prefix that transformers writes.
        root = "transformer." if "transformer.wte.weight" in source else ""
        embedding = source.take(f"{root}wte.weight")
        yield NamedTensor("embedding.word_embeddings.weight", embedding)
        yield NamedTensor("embedding.position_embeddings.weight", source.take(f"{root}wpe.weight"))
        for layer in range(source.config.n_layer):
            for kind in ("weight", "bias"):
                yield from self._layer(source, f"{root}h.{layer}.", f"decoder.layers.{layer}.", kind)
        for kind in ("weight", "bias"):
            yield NamedTensor(f"decoder.final_layernorm.{kind}", source.take(f"{root}ln_f.{kind}"))
        yield from output_layer(source, embedding)

    def _layer(self, source: TensorSource, theirs: str, ours: str, kind: str) -> Iterator[NamedTensor]:
        def take(name: str) -> torch.Tensor:
            return source.take(f"{theirs}{name}.{kind}")

        yield NamedTensor(f"{ours}input_layernorm.{kind}", take("ln_1"))
        query, key, value = _out_first(take("attn.c_attn")).chunk(3)
        yield NamedTensor(f"{ours}self_attention.linear_qkv.{kind}", fuse_qkv(query, key, value, source.config.n_head))
        yield NamedTensor(f"{ours}pre_mlp_layernorm.{kind}", take("ln_2"))
        for megatron_name, hf_name in _LINEARS.items():
            yield NamedTensor(f"{ours}{megatron_name}.{kind}", _out_first(take(hf_name)))

    def is_ignorable(self, name: str, config: Any) -> bool:
        return _MASK_BUFFER.fullmatch(name) is not None


def _out_first(tensor: torch.Tensor) -> torch.Tensor:
    """(in, out) -> (out, in) as a linear layer has it; a bias, (out,), stays as it is."""
    return tensor.T if tensor.dim() == 2 else tensor

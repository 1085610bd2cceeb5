"""CLIP and SigLIP towers: Hugging Face's names and options as Megatron's CLIPViTModel has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from model_providers.checkpoint.hf.family import NamedTensor, require
from model_providers.checkpoint.hf.layout import fuse_qkv
from model_providers.checkpoint.hf.source import TensorSource
from model_providers.errors import UnsupportedModelError

# Hugging Face's names of nonlinearities -> ours.
ACTIVATIONS = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_new": "fast_gelu",
    "gelu_fast": "fast_gelu",
    "gelu_pytorch_tanh": "fast_gelu",
    "relu2": "squared_relu",
    "silu": "silu",
}


class Tower(Protocol):
    """One kind of image encoder."""

    has_class_token: bool

    def flags(self, config: Any, num_layers: int) -> dict[str, object]:
        """Megatron's and our arguments for the first `num_layers` layers of the tower."""

    def tensors(self, source: TensorSource, num_layers: int) -> Iterator[NamedTensor]:
        """Every parameter of vision_model, each as soon as its parts are read."""


# Modules of one layer, Megatron's names -> Hugging Face's.
_LAYER = {
    "input_layernorm": "layer_norm1",
    "self_attention.linear_proj": "self_attn.out_proj",
    "pre_mlp_layernorm": "layer_norm2",
    "mlp.linear_fc1": "mlp.fc1",
    "mlp.linear_fc2": "mlp.fc2",
}


class ClipTower:
    """Also the base of SigLIP's, which differs at both ends of the tower."""

    model_type = "clip"
    has_class_token = True

    def flags(self, config: Any, num_layers: int) -> dict[str, object]:
        require(config, "num_channels", 3)
        return tower_flags(
            self.model_type, config, num_layers, image_size=config.image_size, patch_size=config.patch_size
        )

    def tensors(self, source: TensorSource, num_layers: int) -> Iterator[NamedTensor]:
        yield NamedTensor("vision_model.conv1.weight", source.take("embeddings.patch_embedding.weight"))
        positions = source.take("embeddings.position_embedding.weight")
        yield NamedTensor("vision_model.position_embeddings.weight", positions)
        yield from self.input_tensors(source)
        for layer in range(num_layers):
            yield from _layer_tensors(source, f"encoder.layers.{layer}.", f"vision_model.decoder.layers.{layer}.")

    def input_tensors(self, source: TensorSource) -> Iterator[NamedTensor]:
        """What the two kinds do not have in common."""
        class_token = source.take("embeddings.class_embedding").view(1, 1, -1)
        yield NamedTensor("vision_model.class_token", class_token)
        for kind in ("weight", "bias"):
            yield NamedTensor(f"vision_model.ln_pre.{kind}", source.take(f"pre_layrnorm.{kind}"))


class SiglipTower(ClipTower):
    """No class token, and in LLaVA no norm after the last layer: its features are taken from before it."""

    model_type = "siglip"
    has_class_token = False

    def flags(self, config: Any, num_layers: int) -> dict[str, object]:
        return {**super().flags(config, num_layers), "--no-vision-final-layernorm": None}

    def input_tensors(self, source: TensorSource) -> Iterator[NamedTensor]:
        yield NamedTensor("vision_model.conv1.bias", source.take("embeddings.patch_embedding.bias"))


def tower_flags(
    model_type: str, config: Any, num_layers: int, *, image_size: int, patch_size: int
) -> dict[str, object]:
    """What every tower has; None as a value means a flag without one."""
    return {
        "--vision-model-type": model_type,
        "--img-h": image_size,
        "--img-w": image_size,
        "--patch-dim": patch_size,
        "--vision-num-layers": num_layers,
        "--vision-hidden-size": config.hidden_size,
        "--vision-num-attention-heads": config.num_attention_heads,
        "--vision-ffn-hidden-size": config.intermediate_size,
        "--vision-activation": activation_of(config, "hidden_act"),
        "--vision-layernorm-epsilon": config.layer_norm_eps,
    }


def activation_of(config: Any, option: str) -> str:
    """Raises UnsupportedModelError for a nonlinearity without a counterpart."""
    name = getattr(config, option)
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(option, f"{name!r} is not supported, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _layer_tensors(source: TensorSource, theirs: str, ours: str) -> Iterator[NamedTensor]:
    for kind in ("weight", "bias"):
        for megatron_name, hf_name in _LAYER.items():
            yield NamedTensor(f"{ours}{megatron_name}.{kind}", source.take(f"{theirs}{hf_name}.{kind}"))
        query, key, value = (source.take(f"{theirs}self_attn.{part}_proj.{kind}") for part in "qkv")
        fused = fuse_qkv(query, key, value, source.config.num_attention_heads)
        yield NamedTensor(f"{ours}self_attention.linear_qkv.{kind}", fused)

"""InternViT, of which there are two kinds: the large one has RMSNorm, norms of queries and keys, and no QKV biases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model_providers.checkpoint.hf.family import NamedTensor, require
from model_providers.checkpoint.hf.layout import fuse_qkv
from model_providers.checkpoint.hf.source import TensorSource
from model_providers.checkpoint.hf.vision_tower import tower_flags
from model_providers.errors import UnsupportedModelError

_NORMS = {"input_layernorm": "layernorm_before", "pre_mlp_layernorm": "layernorm_after"}
_LINEARS = {
    "self_attention.linear_proj": "attention.projection_layer",
    "mlp.linear_fc1": "mlp.fc1",
    "mlp.linear_fc2": "mlp.fc2",
}
_BOTH = ("weight", "bias")


class InternVitTower:
    """Sizes are the configuration's; the rest follows from the kind."""

    has_class_token = True

    def flags(self, config: Any, num_layers: int) -> dict[str, object]:
        large = _is_large(config)
        require(config, "num_channels", 3)
        require(config, "use_mask_token", False)
        require(config, "use_absolute_position_embeddings", True)
        require(config, "norm_type", "rms_norm" if large else "layer_norm")
        require(config, "attention_bias", not large)
        height, width = config.image_size
        patch_size, patch_width = config.patch_size
        if (height, patch_size) != (width, patch_width):
            raise UnsupportedModelError("image_size", f"{config.image_size} is not square, or its patches are not")
        kind = "internvit" if large else "internvit300M"
        flags = tower_flags(kind, config, num_layers, image_size=height, patch_size=patch_size)
        return {**flags, "--vision-kv-channels": config.hidden_size // config.num_attention_heads}

    def tensors(self, source: TensorSource, num_layers: int) -> Iterator[NamedTensor]:
        for kind in _BOTH:
            patches = source.take(f"embeddings.patch_embeddings.projection.{kind}")
            yield NamedTensor(f"vision_model.conv1.{kind}", patches)
        positions = source.take("embeddings.position_embeddings")[0]
        yield NamedTensor("vision_model.position_embeddings.weight", positions)
        yield NamedTensor("vision_model.class_token", source.take("embeddings.cls_token"))
        for layer in range(num_layers):
            yield from self._layer(source, f"encoder.layer.{layer}.", f"vision_model.decoder.layers.{layer}.")

    def _layer(self, source: TensorSource, theirs: str, ours: str) -> Iterator[NamedTensor]:
        large = _is_large(source.config)
        for kind in ("weight",) if large else _BOTH:
            for megatron_name, hf_name in _NORMS.items():
                yield NamedTensor(f"{ours}{megatron_name}.{kind}", source.take(f"{theirs}{hf_name}.{kind}"))
            query, key, value = (source.take(f"{theirs}attention.{part}_proj.{kind}") for part in "qkv")
            fused = fuse_qkv(query, key, value, source.config.num_attention_heads)
            yield NamedTensor(f"{ours}self_attention.linear_qkv.{kind}", fused)
        for kind in _BOTH:
            for megatron_name, hf_name in _LINEARS.items():
                yield NamedTensor(f"{ours}{megatron_name}.{kind}", source.take(f"{theirs}{hf_name}.{kind}"))
        for number in (1, 2):
            yield NamedTensor(f"{ours}ls{number}", source.take(f"{theirs}lambda_{number}"))
        for part in "qk" if large else "":
            norm = source.take(f"{theirs}attention.{part}_norm.weight")
            yield NamedTensor(f"{ours}self_attention.{part}_layernorm.weight", norm)


def _is_large(config: Any) -> bool:
    return bool(config.use_qk_norm)

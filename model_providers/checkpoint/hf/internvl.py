"""InternVL: an InternViT tower, pixel shuffle, a norm and two linear layers, and any of the language models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model_providers.checkpoint.hf.family import NamedTensor, require
from model_providers.checkpoint.hf.internvit_tower import InternVitTower
from model_providers.checkpoint.hf.source import TensorSource
from model_providers.checkpoint.hf.vision_language import (
    command_line,
    is_ignorable,
    kept_layers,
    language_config,
    language_family,
    language_tensors,
    projector,
    tower_tensors,
)
from model_providers.checkpoint.hf.vision_tower import activation_of

_PROJECTOR = {
    "linear_fc1.layer_norm_weight": "layer_norm.weight",
    "linear_fc1.layer_norm_bias": "layer_norm.bias",
    "linear_fc1.weight": "linear_1.weight",
    "linear_fc1.bias": "linear_1.bias",
    "linear_fc2.weight": "linear_2.weight",
    "linear_fc2.bias": "linear_2.bias",
}
_TOWER = InternVitTower()


class InternVL:
    multimodal = True

    def megatron_flags(self, config: Any) -> list[str]:
        require(config, "vision_feature_select_strategy", "default")
        require(config, "downsample_ratio", 0.5)
        if config.vision_feature_layer == -1:
            require(config.vision_config, "use_mean_pooling", True)  # otherwise a norm follows the last layer
        flags: dict[str, object] = {
            "--language-model-type": config.text_config.model_type,
            **_TOWER.flags(config.vision_config, kept_layers(config)),
            "--vision-projection-type": "mlp",
            "--vision-projection-ffn-hidden-size": config.text_config.hidden_size,
            "--vision-projection-activation": activation_of(config, "projector_hidden_act"),
            "--vision-projection-normalization": "LayerNorm",
            "--vision-projection-layernorm-epsilon": 1e-5,  # torch's default, which InternVLMultiModalProjector takes
            "--image-tag-type": "internvl",
        }
        switches = ["--vision-projection-bias", "--disable-vision-class-token", "--pixel-shuffle"]
        language = language_family(config).megatron_flags(language_config(config))
        length = str(config.text_config.max_position_embeddings)
        return [*language, "--decoder-seq-length", length, *command_line(flags), *switches]

    def tensors(self, source: TensorSource) -> Iterator[NamedTensor]:
        yield from tower_tensors(source, _TOWER, "embeddings.cls_token")
        part = projector(source)
        for ours, theirs in _PROJECTOR.items():
            yield NamedTensor(f"vision_projection.encoder.{ours}", part.take(theirs))
        yield from language_tensors(source)

    def is_ignorable(self, name: str, config: Any) -> bool:
        return is_ignorable(name, config)

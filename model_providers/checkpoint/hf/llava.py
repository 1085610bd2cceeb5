"""LLaVA-1.5: a CLIP or SigLIP tower, two linear layers, and any of the language models.

Its features are those of `vision_feature_layer`, as a rule the last layer but one, without a norm; so Megatron's tower
has that many layers and nothing after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model_providers.checkpoint.hf.family import NamedTensor, require
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
from model_providers.checkpoint.hf.vision_tower import ClipTower, SiglipTower, Tower, activation_of
from model_providers.errors import UnsupportedModelError

_TOWERS: dict[str, Tower] = {"clip_vision_model": ClipTower(), "siglip_vision_model": SiglipTower()}


class Llava:
    multimodal = True

    def megatron_flags(self, config: Any) -> list[str]:
        tower = _tower(config)
        require(
            config, "vision_feature_select_strategy", *(("default", "full") if tower.has_class_token else ("full",))
        )
        flags: dict[str, object] = {
            "--language-model-type": config.text_config.model_type,
            **tower.flags(config.vision_config, kept_layers(config)),
            "--vision-projection-type": "mlp",
            "--vision-projection-ffn-hidden-size": config.text_config.hidden_size,
            "--vision-projection-activation": activation_of(config, "projector_hidden_act"),
            "--vision-projection-normalization": "none",
        }
        biases = "--vision-projection-bias" if config.multimodal_projector_bias else "--no-vision-projection-bias"
        switches = [biases]
        if config.vision_feature_select_strategy == "default":
            switches.append("--disable-vision-class-token")
        language = language_family(config).megatron_flags(language_config(config))
        length = str(config.text_config.max_position_embeddings)
        return [*language, "--decoder-seq-length", length, *command_line(flags), *switches]

    def tensors(self, source: TensorSource) -> Iterator[NamedTensor]:
        yield from tower_tensors(source, _tower(source.config), "embeddings.patch_embedding.weight")
        part = projector(source)
        for number in (1, 2):
            for kind in ("weight", "bias") if source.config.multimodal_projector_bias else ("weight",):
                name = f"vision_projection.encoder.linear_fc{number}.{kind}"
                yield NamedTensor(name, part.take(f"linear_{number}.{kind}"))
        yield from language_tensors(source)

    def is_ignorable(self, name: str, config: Any) -> bool:
        return is_ignorable(name, config)


def _tower(config: Any) -> Tower:
    kind = config.vision_config.model_type
    if kind not in _TOWERS:
        raise UnsupportedModelError("vision_config.model_type", f"{kind!r} is not supported, only {', '.join(_TOWERS)}")
    return _TOWERS[kind]

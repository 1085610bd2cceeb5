"""Whether a vision-language model can be built from resolved arguments, and what its parts are. Needs no Megatron."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from model_providers.errors import UnsupportedModelError
from model_providers.vision.projection_settings import ProjectionSettings, projection_settings
from model_providers.vision.settings import EncoderSettings, encoder_settings

logger = logging.getLogger(__name__)


class VisionSettings(NamedTuple):
    """The two parts that stand before the language model."""

    encoder: EncoderSettings
    projection: ProjectionSettings


def vision_settings(values: Mapping[str, Any], tensor_model_parallel_size: int) -> VisionSettings:
    """Raises UnsupportedModelError naming the argument of what cannot be built, or not be shared by so many ranks."""
    if values["position_embedding_type"] == "learned_absolute":
        raise UnsupportedModelError(
            "position_embedding_type",
            "learned_absolute counts an image as one position in LLaVAModel, which is not supported; use rope",
        )
    for name in ("language_model_type", "vision_model_type"):
        if str(values[name]).startswith("hf://"):
            raise UnsupportedModelError(name, f"{values[name]!r}: models of Hugging Face's classes cannot be served")
    for name in ("freeze_LM", "freeze_ViT"):
        if values.get(name):
            logger.info("%s concerns training and has no effect here", name)
    settings = VisionSettings(encoder_settings(values), projection_settings(values))
    # How many heads a trained InternViT has, the checkpoint's tensors say; `internvit_heads` asks them.
    heads_known = settings.encoder.model_type != "internvit" or values.get("vision_num_attention_heads") is not None
    _check_divisible(settings, tensor_model_parallel_size, heads_known)
    return settings


def _check_divisible(settings: VisionSettings, ranks: int, heads_known: bool) -> None:
    """The ranks that share the language model share encoder and projection, too."""
    for of_what, count in (
        ("attention heads of the image encoder", settings.encoder.num_attention_heads if heads_known else 0),
        ("columns of the image encoder's MLPs", settings.encoder.ffn_hidden_size),
        ("columns of the vision projection", settings.projection.ffn_hidden_size),
    ):
        if count % ranks:
            raise UnsupportedModelError("tensor_model_parallel_size", f"{count} {of_what} are not divisible by {ranks}")

"""What the projection to the language model is: explicit arguments, else what `language_model_type` implies.

Source of the implications: get_vision_projection_config in Megatron-LM's examples/multimodal/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from model_providers.errors import UnsupportedModelError
from model_providers.vision.activation import ACTIVATION_NAMES, ActivationName
from model_providers.vision.choice import one_of

ProjectionType = Literal["mlp", "affine"]
_TYPES: tuple[ProjectionType, ...] = ("mlp", "affine")


class _Implied(NamedTuple):
    """normalization: before the first layer; "args" where training takes the language model's own."""

    ffn_hidden_size: int
    activation: ActivationName = "gelu"
    add_bias: bool = False
    normalization: str | None = "args"


_IMPLIED = {
    "llama3_8b": _Implied(14336),
    "llama3.1_8b": _Implied(4096, add_bias=True, normalization="LayerNorm"),
    "llama3.2_1b": _Implied(2048, normalization="LayerNorm"),
    "mistral_7b": _Implied(14336, normalization=None),
    "yi-34b": _Implied(20480, normalization="LayerNorm"),
    "qwen2.0_72B": _Implied(29568, normalization="LayerNorm"),
    "qwen2.5_7B": _Implied(3584, add_bias=True, normalization="LayerNorm"),
    "qwen2.5_72B": _Implied(29568, normalization="LayerNorm"),
    "nemotron5-8b": _Implied(21504, activation="squared_relu"),
}


@dataclass(frozen=True)
class ProjectionSettings:
    """kind "affine" is one linear layer, which has neither ffn_hidden_size, activation nor normalization.

    normalization: of the encoder's tokens, before the first linear layer; None for none.
    """

    kind: ProjectionType
    ffn_hidden_size: int
    activation: ActivationName
    add_bias: bool
    normalization: str | None
    layernorm_epsilon: float


def projection_settings(values: Mapping[str, Any]) -> ProjectionSettings:
    """Resolved arguments -> projection. Raises UnsupportedModelError naming the argument that is wrong or missing."""
    kind = one_of("vision_projection_type", values["vision_projection_type"], _TYPES)
    implied = _IMPLIED.get(values["language_model_type"])
    ffn_hidden_size = values.get("vision_projection_ffn_hidden_size") or (implied and implied.ffn_hidden_size)
    if ffn_hidden_size is None and kind == "mlp":
        raise UnsupportedModelError(
            "vision_projection_ffn_hidden_size",
            f"is not in the checkpoint, and language_model_type {values['language_model_type']!r} implies none",
        )
    add_bias = values.get("vision_projection_bias")
    return ProjectionSettings(
        kind=kind,
        ffn_hidden_size=ffn_hidden_size or values["hidden_size"],
        activation=one_of(
            "vision_projection_activation",
            values.get("vision_projection_activation") or (implied.activation if implied else "gelu"),
            ACTIVATION_NAMES,
        ),
        add_bias=(implied is not None and implied.add_bias) if add_bias is None else add_bias,
        normalization=_normalization(values, implied, kind),
        layernorm_epsilon=values.get("vision_projection_layernorm_epsilon") or values["layernorm_epsilon"],
    )


def _normalization(values: Mapping[str, Any], implied: _Implied | None, kind: ProjectionType) -> str | None:
    said = values.get("vision_projection_normalization")
    if said is None:
        said = implied.normalization if implied else None
        said = values["normalization"] if said == "args" else said
    if said is None or kind == "affine":
        return None
    chosen = one_of("vision_projection_normalization", said, ("none", "LayerNorm", "RMSNorm"))
    return None if chosen == "none" else chosen

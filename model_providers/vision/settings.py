"""What the image encoder is: explicit arguments where there are any, else what `vision_model_type` implies.

A Megatron training run stores the name of its encoder and not its sizes, which are constants of the training script
(get_vision_model_config in Megatron-LM's examples/multimodal/config.py; `image_preprocessing.encoders` lists them). The
`vision_*` arguments say them explicitly, for encoders of other sizes; each is None where the name decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from image_preprocessing.encoders import Encoder, find_encoder
from image_preprocessing.errors import ImageSettingsError
from image_preprocessing.settings import ImageSettings
from model_providers.errors import UnsupportedModelError
from model_providers.vision.activation import ACTIVATION_NAMES, ActivationName
from model_providers.vision.choice import one_of


class _Layers(NamedTuple):
    """Properties of an encoder's layers that have no argument, or are not what the encoder table says.

    num_attention_heads: None for the table's. kv_channels: None where heads share the width evenly. layernorm_epsilon:
    None where training takes the language model's. qk_layernorm: over all heads together. fused_norms: whether
    Transformer Engine fuses the norms into the linear layers after them, and so names them in checkpoints.
    """

    num_attention_heads: int | None = None
    kv_channels: int | None = None
    layernorm_epsilon: float | None = 1e-6
    qk_layernorm: bool = False
    layer_scaling: bool = False
    final_layernorm: bool = False
    fused_norms: bool = True


_LAYERS = {
    "clip": _Layers(layernorm_epsilon=None),
    "siglip": _Layers(final_layernorm=True),
    "internvit": _Layers(
        num_attention_heads=25, kv_channels=128, qk_layernorm=True, layer_scaling=True, fused_norms=False
    ),
    "internvit300M": _Layers(layer_scaling=True, fused_norms=False),
    "radio": _Layers(),
    "radio-g": _Layers(layer_scaling=True, final_layernorm=True),
    "cradio-g": _Layers(),
}


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """One image encoder, complete. Sizes are of the whole encoder, not of one tensor-parallel rank's part.

    images: geometry of what it takes and gives. final_layernorm: a norm after the last layer. is_radio: it is
    Megatron's RADIOViTModel, otherwise CLIPViTModel.
    """

    model_type: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    kv_channels: int
    ffn_hidden_size: int
    activation: ActivationName
    layernorm_epsilon: float
    normalization: Literal["LayerNorm", "RMSNorm"]
    add_qkv_bias: bool
    qk_layernorm: bool
    layer_scaling: bool
    final_layernorm: bool
    fused_norms: bool
    is_radio: bool
    images: ImageSettings

    @property
    def output_size(self) -> int:
        """Width of one token as the projection takes it; pixel shuffle lays four tokens side by side."""
        return self.hidden_size * self.images.merge_side**2


def encoder_settings(values: Mapping[str, Any]) -> EncoderSettings:
    """Resolved arguments -> encoder. Raises UnsupportedModelError naming the argument that cannot be honoured."""
    images = _image_settings(values)
    encoder = find_encoder(images.vision_model_type)
    layers = _LAYERS[encoder.name]

    def said(name: str, otherwise: Any) -> Any:
        value = values.get(name)
        return otherwise if value is None else value

    hidden_size = said("vision_hidden_size", encoder.hidden_size)
    heads = said("vision_num_attention_heads", layers.num_attention_heads or encoder.num_attention_heads)
    of_own_width = hidden_size != encoder.hidden_size
    settings = EncoderSettings(
        model_type=encoder.name,
        num_layers=said("vision_num_layers", encoder.num_layers),
        hidden_size=hidden_size,
        num_attention_heads=heads,
        kv_channels=said("vision_kv_channels", None if of_own_width else layers.kv_channels) or hidden_size // heads,
        ffn_hidden_size=said("vision_ffn_hidden_size", 4 * hidden_size if of_own_width else encoder.ffn_hidden_size),
        activation=one_of("vision_activation", said("vision_activation", _activation(encoder)), ACTIVATION_NAMES),
        layernorm_epsilon=said("vision_layernorm_epsilon", layers.layernorm_epsilon or values["layernorm_epsilon"]),
        normalization=encoder.normalization,
        add_qkv_bias=encoder.add_qkv_bias,
        qk_layernorm=layers.qk_layernorm,
        layer_scaling=layers.layer_scaling,
        final_layernorm=said("vision_final_layernorm", layers.final_layernorm),
        fused_norms=layers.fused_norms,
        is_radio=encoder.is_radio,
        images=images,
    )
    if settings.final_layernorm and not layers.final_layernorm:
        raise UnsupportedModelError("vision_final_layernorm", f"{encoder.name} has no norm after its last layer")
    return settings


def _image_settings(values: Mapping[str, Any]) -> ImageSettings:
    try:
        settings = ImageSettings.from_values(values)
    except ImageSettingsError as error:
        raise UnsupportedModelError(error.argument, error.reason) from error
    if settings.conv_merging:
        raise UnsupportedModelError("conv_merging", "megatron-core's LLaVAModel has no such layer")
    return settings


def _activation(encoder: Encoder) -> ActivationName:
    return "swiglu" if encoder.gated_linear_unit else encoder.activation

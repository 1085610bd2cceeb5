"""The image encoders of Megatron's examples/multimodal: geometry, transformer sizes and pixel statistics of each.

Megatron's sources disagree about patch sizes, class tokens and statistics (radio-g above all), so what a checkpoint's
args say wins over this table. Sources: examples/multimodal/config.py and image_processing.py,
megatron/core/models/multimodal/llava_model.py, megatron/core/models/vision/encoder_registry.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from image_preprocessing.errors import ImageSettingsError

Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class PixelStatistics:
    """Mean and standard deviation of each channel, of pixels scaled to 0..1."""

    mean: Triple
    std: Triple


CLIP_STATISTICS = PixelStatistics((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
IMAGENET_STATISTICS = PixelStatistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF_STATISTICS = PixelStatistics((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """One `vision_model_type`.

    class_token_len: tokens before the patches. is_radio: it is Megatron's RADIOViTModel, which alone takes images of
    their own size (dynamic resolution) and another number of class tokens than its default; the rest are CLIPViTModel.
    num_attention_heads: internvit's 24 is rounded up to the tensor-parallel size. activation: by megatron-core's name.
    """

    name: str
    patch_dim: int
    class_token_len: int
    statistics: PixelStatistics
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    is_radio: bool = False
    activation: Literal["gelu", "fast_gelu", "quick_gelu", "silu"] = "gelu"
    gated_linear_unit: bool = False
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    add_qkv_bias: bool = True


_TABLE = (
    Encoder(
        name="clip",
        patch_dim=14,
        class_token_len=1,
        statistics=CLIP_STATISTICS,
        num_layers=24,
        hidden_size=1024,
        num_attention_heads=16,
        ffn_hidden_size=4096,
        activation="quick_gelu",
    ),
    Encoder(
        name="siglip",
        patch_dim=14,
        class_token_len=0,
        statistics=HALF_STATISTICS,
        num_layers=27,
        hidden_size=1152,
        num_attention_heads=16,
        ffn_hidden_size=4304,
        activation="fast_gelu",
    ),
    Encoder(
        name="internvit",
        patch_dim=14,
        class_token_len=1,
        statistics=IMAGENET_STATISTICS,
        num_layers=45,
        hidden_size=3200,
        num_attention_heads=24,
        ffn_hidden_size=12800,
        normalization="RMSNorm",
        add_qkv_bias=False,
    ),
    Encoder(
        name="internvit300M",
        patch_dim=14,
        class_token_len=1,
        statistics=IMAGENET_STATISTICS,
        num_layers=24,
        hidden_size=1024,
        num_attention_heads=16,
        ffn_hidden_size=4096,
    ),
    Encoder(
        name="radio",
        patch_dim=16,
        class_token_len=8,
        statistics=CLIP_STATISTICS,
        num_layers=32,
        hidden_size=1280,
        num_attention_heads=16,
        ffn_hidden_size=5120,
        is_radio=True,
        activation="fast_gelu",
    ),
    Encoder(
        name="radio-g",
        patch_dim=14,
        class_token_len=5,
        statistics=CLIP_STATISTICS,
        num_layers=40,
        hidden_size=1536,
        num_attention_heads=24,
        ffn_hidden_size=4096,
        is_radio=True,
        activation="silu",
        gated_linear_unit=True,
    ),
    Encoder(
        name="cradio-g",
        patch_dim=16,
        class_token_len=8,
        statistics=CLIP_STATISTICS,
        num_layers=40,
        hidden_size=1536,
        num_attention_heads=24,
        ffn_hidden_size=6144,
        is_radio=True,
        activation="fast_gelu",
    ),
)
ENCODERS: Mapping[str, Encoder] = {encoder.name: encoder for encoder in _TABLE}


def find_encoder(vision_model_type: object) -> Encoder:
    """Raises ImageSettingsError, naming those there are."""
    encoder = ENCODERS.get(vision_model_type) if isinstance(vision_model_type, str) else None
    if encoder is None:
        raise ImageSettingsError("vision_model_type", f"{vision_model_type!r} is not one of {', '.join(ENCODERS)}")
    return encoder

"""Defaults that the model's own names imply: the image encoder's patch size, class tokens and pixel statistics.

What a checkpoint's args say wins over these: Megatron's sources disagree with each other about them.
Source: encoder definitions in Megatron-LM's examples/multimodal. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_Triple = tuple[float, float, float]
_CLIP: tuple[_Triple, _Triple] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_IMAGENET: tuple[_Triple, _Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_HALF: tuple[_Triple, _Triple] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


class _Encoder(NamedTuple):
    """statistics: mean and standard deviation per channel, of pixels scaled to 0..1."""

    patch_dim: int
    class_token_len: int
    statistics: tuple[_Triple, _Triple]


_ENCODERS = {
    "clip": _Encoder(14, 1, _CLIP),
    "siglip": _Encoder(14, 0, _HALF),
    "internvit": _Encoder(14, 1, _IMAGENET),
    "internvit300M": _Encoder(14, 1, _IMAGENET),
    "radio": _Encoder(16, 8, _CLIP),
    "radio-g": _Encoder(14, 5, _CLIP),
    "cradio-g": _Encoder(16, 8, _CLIP),
}


def model_defaults(vision_model_type: str | None) -> Mapping[str, Any]:
    """Values by destination; empty for an encoder that is not known here. pixel_mean and pixel_std are 0 to 255."""
    encoder = _ENCODERS.get(vision_model_type or "")
    if encoder is None:
        return {}
    mean, deviation = encoder.statistics
    return {
        "patch_dim": encoder.patch_dim,
        "class_token_len": encoder.class_token_len,
        "pixel_mean": [255 * value for value in mean],
        "pixel_std": [255 * value for value in deviation],
    }

"""Defaults that the image encoder's name implies: patch size, class tokens and pixel statistics.

What a checkpoint's args say wins over these: Megatron's sources disagree with each other about them. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from image_preprocessing.encoders import ENCODERS


def model_defaults(vision_model_type: str | None) -> Mapping[str, Any]:
    """Values by destination; empty for an encoder that is not known here. Statistics are of pixels from 0 to 1."""
    encoder = ENCODERS.get(vision_model_type or "")
    if encoder is None:
        return {}
    return {
        "patch_dim": encoder.patch_dim,
        "class_token_len": encoder.class_token_len,
        "pixel_mean": list(encoder.statistics.mean),
        "pixel_std": list(encoder.statistics.std),
    }

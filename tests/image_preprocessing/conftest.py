"""What the tests of image preprocessing share: encoded images and the settings of well-known models."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from image_preprocessing.settings import ImageSettings

Encode = Callable[..., bytes]


def encode_image(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def encode() -> Encode:
    return encode_image


@pytest.fixture(scope="session")
def noise() -> Callable[..., Image.Image]:
    """noise(width, height): an RGB image in which every pixel differs from its neighbours."""

    def make(width: int, height: int, seed: int = 0) -> Image.Image:
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        return Image.fromarray(pixels)

    return make


MODELS: dict[str, dict[str, Any]] = {
    "llava": {"vision_model_type": "clip", "img_h": 336, "img_w": 336, "disable_vision_class_token": True},
    "clip-with-class-token": {"vision_model_type": "clip", "img_h": 224, "img_w": 224},
    "siglip": {"vision_model_type": "siglip", "img_h": 448, "img_w": 448, "pixel_shuffle": True},
    "nvlm": {
        "vision_model_type": "internvit",
        "img_h": 448,
        "img_w": 448,
        "pixel_shuffle": True,
        "disable_vision_class_token": True,
        "use_tiling": True,
        "max_num_tiles": 6,
        "use_thumbnail": True,
        "use_tile_tags": True,
        "tokenizer_prompt_format": "qwen2p0",
    },
    "nano-vl": {
        "vision_model_type": "radio",
        "img_h": 512,
        "img_w": 512,
        "pixel_shuffle": True,
        "disable_vision_class_token": True,
        "use_tiling": True,
        "max_num_tiles": 12,
        "use_thumbnail": True,
        "use_area_weighted_aspect_ratio": True,
    },
    "radio-dynamic": {
        "vision_model_type": "radio",
        "img_h": 512,
        "img_w": 512,
        "dynamic_resolution": True,
        "dynamic_resolution_min_patches": 64,
        "dynamic_resolution_max_patches": 1024,
    },
    "radio-dynamic-merged": {
        "vision_model_type": "radio",
        "img_h": 512,
        "img_w": 512,
        "pixel_shuffle": True,
        "conv_merging": True,
        "disable_vision_class_token": True,
        "use_thumbnail": True,
        "dynamic_resolution": True,
        "dynamic_resolution_min_side": 96,
        "dynamic_resolution_max_patches": 3072,
    },
}


@pytest.fixture(scope="session")
def settings_of() -> Callable[..., ImageSettings]:
    """settings_of("nvlm", max_num_tiles=4): a model's settings, with other values in places."""

    def make(model: str, **others: Any) -> ImageSettings:
        return ImageSettings.from_values(MODELS[model] | others)

    return make


@pytest.fixture(params=list(MODELS))
def settings(request: pytest.FixtureRequest) -> ImageSettings:
    """Every model's in turn."""
    return ImageSettings.from_values(MODELS[request.param])

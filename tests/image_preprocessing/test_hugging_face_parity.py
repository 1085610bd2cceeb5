"""Pixel values equal to those of Hugging Face's PIL processors, for LLaVA-1.5 (CLIP) and for SigLIP."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from image_preprocessing.errors import ImageSizeError
from image_preprocessing.pipeline import prepare_image
from image_preprocessing.settings import ImageSettings

SIZES = [(336, 336), (1, 1), (1, 40), (37, 2), (335, 337), (640, 480), (481, 641), (224, 1000), (1000, 223), (64, 64)]
SIZES += [(random.Random(seed).randint(1, 900), random.Random(seed + 99).randint(1, 900)) for seed in range(12)]


def png(size: tuple[int, int], mode: str) -> bytes:
    generator = np.random.default_rng(size[0] * 1000 + size[1])
    small = generator.integers(0, 256, (min(size[1], 30), min(size[0], 30), 4), dtype=np.uint8)
    image = Image.fromarray(small, "RGBA").resize(size, Image.Resampling.NEAREST)
    if mode == "P":
        image = image.convert("RGB").quantize(16)
        image.info["transparency"] = 3
    elif mode != "RGBA":
        image = image.convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def clip():
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})


@pytest.fixture(scope="module")
def siglip():
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    return SiglipImageProcessorPil(size={"height": 224, "width": 224})


def theirs(processor, data: bytes) -> np.ndarray:
    return np.asarray(processor(Image.open(io.BytesIO(data)), return_tensors="np")["pixel_values"])


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "1", "P"])
def test_clip_with_center_crop(mode, clip):
    values = {"vision_model_type": "clip", "img_h": 336, "img_w": 336, "image_resize_mode": "center_crop"}
    settings = ImageSettings.from_values(values)
    for size in SIZES if mode == "RGB" else SIZES[5:8]:
        data = png(size, mode)
        ours = prepare_image(data, settings).pixels
        np.testing.assert_allclose(ours, theirs(clip, data), rtol=0, atol=1e-5, err_msg=f"{size}")


def test_siglip_with_stretch(siglip):
    settings = ImageSettings.from_values({"vision_model_type": "siglip", "img_h": 224, "img_w": 224})
    for size in SIZES:
        data = png(size, "RGB")
        ours = prepare_image(data, settings).pixels
        np.testing.assert_allclose(ours, theirs(siglip, data), rtol=0, atol=1e-5, err_msg=f"{size}")


def test_an_image_too_thin_to_crop_is_refused(encode):
    values = {"vision_model_type": "clip", "img_h": 336, "img_w": 336, "image_resize_mode": "center_crop"}
    for size in ((1, 10_000), (10_000, 1)):
        with pytest.raises(ImageSizeError, match="too thin: with a short side of 336 the long one would be 3,360,000"):
            prepare_image(encode(Image.new("L", size)), ImageSettings.from_values(values))

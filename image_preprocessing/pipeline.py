"""Bytes of an image to what the engine needs of it: one pure function, fit for a pool of threads or processes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from image_preprocessing.decode import decode_image
from image_preprocessing.limits import DEFAULT_LIMITS, ImageLimits
from image_preprocessing.pixels import Pixels, encoder_input
from image_preprocessing.plan import ImagePlan, plan_image
from image_preprocessing.resize import Pixels8, encoder_images
from image_preprocessing.settings import ImageSettings


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """pixels: the encoder's input, see `pixels.encoder_input` for its shape. num_tokens: rows in the language model's
    input, tile tags included. digest: SHA-256 (32 bytes) of plan and pixels; equal digests mean equal embeddings.
    """

    pixels: Pixels
    plan: ImagePlan
    num_tokens: int
    digest: bytes


def prepare_image(data: bytes, settings: ImageSettings, limits: ImageLimits = DEFAULT_LIMITS) -> PreparedImage:
    """Decode, plan, resize and normalise. Raises ImageError, whose message is the reason without the image's number.

    Pillow and numpy let other threads run meanwhile. Memory: about 8 bytes for each pixel of the image, then 15 for
    each the encoder gets.
    """
    decoded = decode_image(data, num_frames=settings.num_frames, background=settings.image_background, limits=limits)
    plan = plan_image(decoded.width, decoded.height, settings, num_frames=len(decoded.frames), limits=limits)
    images = encoder_images(decoded.frames, plan, settings, limits)
    return PreparedImage(encoder_input(images, plan, settings), plan, plan.num_tokens, _digest(images, plan, settings))


def _digest(images: Sequence[Pixels8], plan: ImagePlan, settings: ImageSettings) -> bytes:
    """Over the 8-bit pixels and what normalises them, which say as much as the floats in a quarter of the bytes."""
    digest = hashlib.sha256(repr((plan, settings.pixel_mean, settings.pixel_std)).encode())
    for image in images:
        digest.update(np.ascontiguousarray(image))
    return digest.digest()

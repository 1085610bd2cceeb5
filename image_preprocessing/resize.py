"""Frames to the pixels an encoder input shows, still 8-bit: resized, cut into tiles or cropped. Pillow resamples.

Source: `ImageTransform` of examples/multimodal/image_processing.py; for center_crop CLIP's preprocessing as
Hugging Face's `CLIPImageProcessorPil` does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from image_preprocessing.errors import ImageSizeError
from image_preprocessing.limits import ImageLimits
from image_preprocessing.plan import ImagePlan, PatchPlan, TilePlan
from image_preprocessing.settings import ImageSettings

Pixels8 = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]  # (height, width, 3)

_FILTERS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}


def encoder_images(
    frames: Sequence[Image.Image], plan: ImagePlan, settings: ImageSettings, limits: ImageLimits
) -> list[Pixels8]:
    """One array per encoder input, in the plan's order and of the sizes in its `imgs_sizes`.

    frames: mode RGB, as many as the plan has. Raises ImageSizeError for an image too thin to be cropped.
    """
    assert len(frames) == plan.num_frames
    images = (
        _whole_images(frames, plan, settings) if isinstance(plan, PatchPlan) else _tiles(frames, plan, settings, limits)
    )
    return [np.asarray(image) for image in images]


def _whole_images(frames: Sequence[Image.Image], plan: PatchPlan, settings: ImageSettings) -> Iterator[Image.Image]:
    sources = (*frames, *frames[:1]) if plan.thumbnail else frames
    for frame, (height, width) in zip(sources, plan.imgs_sizes, strict=True):
        yield _resize(frame, width, height, settings)


def _tiles(
    frames: Sequence[Image.Image], plan: TilePlan, settings: ImageSettings, limits: ImageLimits
) -> Iterator[Image.Image]:
    for frame in frames:
        if settings.image_resize_mode == "center_crop":
            yield _center_crop(frame, plan.tile_h, settings, limits)
            continue
        whole = _resize(frame, plan.grid.columns * plan.tile_w, plan.grid.rows * plan.tile_h, settings)
        for top in range(0, whole.height, plan.tile_h):
            for left in range(0, whole.width, plan.tile_w):
                yield whole.crop((left, top, left + plan.tile_w, top + plan.tile_h))
        if plan.has_thumbnail:
            yield _resize(frame, plan.tile_w, plan.tile_h, settings)


def _center_crop(frame: Image.Image, side: int, settings: ImageSettings, limits: ImageLimits) -> Image.Image:
    short, long = sorted(frame.size)
    scaled = side * long // short
    if side * scaled > limits.max_pixels:
        size = f"{frame.width}x{frame.height} pixels"
        raise ImageSizeError(f"{size} is too thin: with a short side of {side} the long one would be {scaled:,}")
    width, height = (side, scaled) if frame.width <= frame.height else (scaled, side)
    left, top = (width - side) // 2, (height - side) // 2
    return _resize(frame, width, height, settings).crop((left, top, left + side, top + side))


def _resize(frame: Image.Image, width: int, height: int, settings: ImageSettings) -> Image.Image:
    return frame.resize((width, height), _FILTERS[settings.image_resample])

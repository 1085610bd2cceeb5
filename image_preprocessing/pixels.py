"""8-bit pixels to the numbers an encoder takes: scaled to 0..1, normalised by channel, channels first or in patches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from image_preprocessing.encoders import Triple
from image_preprocessing.plan import ImagePlan, PatchPlan
from image_preprocessing.resize import Pixels8
from image_preprocessing.settings import ImageSettings

Pixels = npt.NDArray[np.float32]


def encoder_input(images: Sequence[Pixels8], plan: ImagePlan, settings: ImageSettings) -> Pixels:
    """What the encoder is given for one image, float32.

    Tiles: (num_tiles, 3, tile_h, tile_w). Dynamic resolution: (num_patches, 3 * patch_dim * patch_dim), the patches of
    all grids one after the other, each grid's row by row, and within a patch channel by channel, row by row.
    """
    table = value_table(settings)
    if isinstance(plan, PatchPlan):
        return np.concatenate([patchify(normalise(image, table), plan.patch_dim) for image in images])
    return np.stack([normalise(image, table) for image in images])


def value_table(settings: ImageSettings) -> Pixels:
    """(3, 256): what each value of a channel becomes, computed once and in float64 instead of for every pixel."""
    return _value_table(settings.pixel_mean, settings.pixel_std)


@lru_cache
def _value_table(mean: Triple, std: Triple) -> Pixels:
    scaled = np.arange(256) / 255
    table: Pixels = ((scaled - np.array(mean)[:, None]) / np.array(std)[:, None]).astype(np.float32)
    table.flags.writeable = False  # all images share it
    return table


def normalise(image: Pixels8, table: Pixels) -> Pixels:
    """(height, width, 3) to (3, height, width)."""
    return np.stack([table[channel][image[..., channel]] for channel in range(3)])


def patchify(pixels: Pixels, patch_dim: int) -> Pixels:
    """(3, height, width) to (patches, 3 * patch_dim * patch_dim), as RADIOViTModel cuts images of one size."""
    _, height, width = pixels.shape
    rows, columns = height // patch_dim, width // patch_dim
    patches = pixels.reshape(3, rows, patch_dim, columns, patch_dim).transpose(1, 3, 0, 2, 4)
    return np.ascontiguousarray(patches).reshape(rows * columns, 3 * patch_dim * patch_dim)

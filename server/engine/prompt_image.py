"""An image of a prompt with its pixels at hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from server.request import EngineImage


@dataclass(frozen=True, eq=False)
class PromptImage:
    """digest, first_token, num_tokens, imgs_sizes: see `EngineImage`. pixels: float32, mapped into memory."""

    digest: str
    first_token: int
    num_tokens: int
    imgs_sizes: tuple[tuple[int, int], ...]
    pixels: NDArray[np.float32]


def open_image(image: EngineImage) -> PromptImage:
    """Map the pixels; they stay readable when their file is removed later.

    Raises OSError when the file cannot be read, ValueError when it has not the size that its shape calls for.
    """
    path = Path(image.pixels_file)
    if path.stat().st_size != 4 * math.prod(image.shape):
        raise ValueError(f"{path.stat().st_size} bytes for float32 pixels of shape {image.shape}")
    pixels = np.memmap(path, dtype=np.float32, mode="c", shape=image.shape)
    return PromptImage(image.digest, image.first_token, image.num_tokens, image.imgs_sizes, pixels)

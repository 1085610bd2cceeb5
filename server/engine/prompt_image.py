"""An image of a prompt with its pixels at hand."""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

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


class ImageFiles:
    """Opens the images of requests. Those that share an image share one mapping of it, while any of them lives."""

    def __init__(self) -> None:
        self._mapped: WeakValueDictionary[str, NDArray[np.float32]] = WeakValueDictionary()

    def open(self, image: EngineImage) -> PromptImage:
        """Map the pixels; they stay readable when their file is removed later.

        Raises OSError when the file cannot be read, ValueError when it has not the size that its shape calls for.
        """
        pixels = self._mapped.get(image.digest)
        if pixels is None:
            pixels = self._mapped[image.digest] = _map(Path(image.pixels_file), image.shape)
        return PromptImage(image.digest, image.first_token, image.num_tokens, image.imgs_sizes, pixels)


def _map(file: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    with file.open("rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size != 4 * math.prod(shape):
            raise ValueError(f"{size} bytes for float32 pixels of shape {shape}")
        # numpy.memmap does the same, with ten times the Python around it.
        mapped = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY)
    return np.frombuffer(mapped, dtype=np.float32).reshape(shape)

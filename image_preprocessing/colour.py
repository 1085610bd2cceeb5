"""Any pixel format to 8-bit RGB, by these rules.

- Alpha (RGBA, LA, PA, a palette's or a colour key's transparency) is composited on the background, never dropped.
- 16 bits per channel become 8 by their high byte, which is also what Pillow does while decoding 16-bit RGB.
- Grey is repeated over the channels; 1 bit is 0 or 255; a palette is looked up.
- CMYK and YCbCr become RGB by Pillow's conversion without colour profiles; ICC profiles are ignored throughout.
- Other formats (32-bit and floating-point grey, LAB, HSV) are refused by name.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from image_preprocessing.errors import ImageDecodeError

Rgb = tuple[int, int, int]
WHITE: Rgb = (255, 255, 255)

_CONVERTED = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"})


def to_rgb(image: Image.Image, background: Rgb = WHITE) -> Image.Image:
    """A decoded image in mode RGB, of the same size. Raises ImageDecodeError for a format that is not converted."""
    if image.mode.startswith("I;16"):
        image = _high_byte(image)
    if image.mode not in _CONVERTED:
        raise ImageDecodeError(f"pixel format {image.mode} is not supported: send 8-bit RGB")
    if _has_transparency(image):
        return _composite(image, background)
    return image.convert("RGB")


def _has_transparency(image: Image.Image) -> bool:
    return bool({"A", "a"} & set(image.getbands())) or image.info.get("transparency") is not None


def _composite(image: Image.Image, background: Rgb) -> Image.Image:
    canvas = Image.new("RGBA", image.size, (*background, 255))
    return Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")


def _high_byte(image: Image.Image) -> Image.Image:
    """16-bit grey as L, or LA where one grey value is declared transparent."""
    values = np.asarray(image)  # (height, width) of uint16
    grey = Image.fromarray((values >> 8).astype(np.uint8))
    transparent = image.info.get("transparency")
    if transparent is None:
        return grey
    grey.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
    return grey

"""PNG's colour key, the one colour that is transparent, in the units of the pixels as Pillow decodes them.

Pillow keeps the key as the file has it, but scales 2- and 4-bit grey to 8 bits and cuts 16-bit RGB to its high bytes.
Source: PNG specification (W3C, third edition), sections 11.3.1.1 (tRNS) and 13.12 (sample depth scaling).
"""

from __future__ import annotations

from PIL import Image

_BIT_DEPTH_AT = 24  # in the header chunk, which is always first


def scale_colour_key(image: Image.Image, data: bytes) -> None:
    """Rewrite the key in `image.info`, where the opened PNG has one whose units differ from its pixels'."""
    key, bit_depth = image.info.get("transparency"), data[_BIT_DEPTH_AT]
    if isinstance(key, int) and image.mode == "L" and bit_depth in (2, 4):
        image.info["transparency"] = key * 255 // (2**bit_depth - 1)
    elif isinstance(key, tuple) and bit_depth == 16:
        image.info["transparency"] = tuple(sample >> 8 for sample in key)

"""Width and height in the first 30 bytes of a WebP file.

Source: RFC 9649 (WebP Image Format), sections 2.5 (VP8), 2.6 (VP8L) and 2.7 (VP8X).
"""

from __future__ import annotations

from typing import NamedTuple

from image_preprocessing.errors import ImageDecodeError

_HEADER_BYTES = 30  # RIFF header, chunk header, and the longest of the three size fields


class CanvasSize(NamedTuple):
    """In pixels."""

    width: int
    height: int


def webp_canvas_size(data: bytes) -> CanvasSize:
    """The canvas every frame lies on. Raises ImageDecodeError for another first chunk, or too few bytes."""
    chunk = data[12:16]
    if len(data) < _HEADER_BYTES:
        raise ImageDecodeError(f"damaged WEBP header: {len(data)} bytes")
    if chunk == b"VP8X":
        return CanvasSize(1 + _little_endian(data[24:27]), 1 + _little_endian(data[27:30]))
    if chunk == b"VP8L":
        bits = _little_endian(data[21:25])
        return CanvasSize(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if chunk == b"VP8 ":
        return CanvasSize(_little_endian(data[26:28]) & 0x3FFF, _little_endian(data[28:30]) & 0x3FFF)
    raise ImageDecodeError("damaged WEBP header: no picture in the first chunk")


def _little_endian(field: bytes) -> int:
    return int.from_bytes(field, "little")

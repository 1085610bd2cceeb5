"""The header of an image file: its format by signature, and its size against the limits, with no pixel decoded.

Plugins are constructed directly, so that exactly the accepted formats are ever parsed: `Image.open` would try every
format Pillow knows, and warns through process-wide state where our limits answer.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import NamedTuple

from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from image_preprocessing.damage import damage_reported
from image_preprocessing.errors import ImageDecodeError, ImageFormatError
from image_preprocessing.limits import ImageLimits
from image_preprocessing.webp_header import webp_canvas_size

_SOS = b"\xff\xda"  # JPEG start of scan; entropy-coded data never contain it


class _Format(NamedTuple):
    name: str
    matches: Callable[[bytes], bool]
    plugin: Callable[[io.BytesIO], ImageFile]


_ACCEPTED = (
    _Format("PNG", lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"), PngImageFile),
    _Format("JPEG", lambda data: data.startswith(b"\xff\xd8\xff"), JpegImageFile),
    _Format("WEBP", lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP", WebPImageFile),
    _Format("GIF", lambda data: data[:6] in (b"GIF87a", b"GIF89a"), GifImageFile),
    _Format("BMP", lambda data: data.startswith(b"BM"), BmpImageFile),
)
ACCEPTED_FORMATS = tuple(accepted.name for accepted in _ACCEPTED)

# Only to say what was sent. TIFF is not accepted: its decoders are many, and chat clients do not send it.
_OTHERS: tuple[tuple[str, Callable[[bytes], bool]], ...] = (
    ("TIFF", lambda data: data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    ("AVIF or HEIF", lambda data: data[4:8] == b"ftyp"),
    ("JPEG 2000", lambda data: data[4:8] == b"jP  "),
    ("PDF", lambda data: data.startswith(b"%PDF")),
    ("SVG or XML", lambda data: data.lstrip()[:4].lower() in (b"<svg", b"<?xm")),
)


def open_image(data: bytes, limits: ImageLimits) -> ImageFile:
    """The image file, opened and within the limits; its pixels are not decoded.

    Raises ImageFormatError, ImageLimitError, and ImageDecodeError for a damaged header.
    """
    if not data:
        raise ImageFormatError("it is empty: no bytes")
    limits.check_bytes(len(data))
    accepted = _recognise(data)
    if accepted.name == "WEBP":
        # Pillow's plugin makes its canvases when it is constructed.
        limits.check_size(*webp_canvas_size(data))
    if accepted.name == "JPEG":
        limits.check_jpeg_scans(data.count(_SOS))
    with damage_reported(f"damaged {accepted.name} header"):
        image = accepted.plugin(io.BytesIO(data))
    if min(image.size) < 1:
        raise ImageDecodeError(f"damaged {accepted.name} header: {image.width}x{image.height} pixels")
    limits.check_size(*image.size)
    return image


def _recognise(data: bytes) -> _Format:
    for accepted in _ACCEPTED:
        if accepted.matches(data):
            return accepted
    wanted = f"send {', '.join(ACCEPTED_FORMATS[:-1])} or {ACCEPTED_FORMATS[-1]}"
    for name, matches in _OTHERS:
        if matches(data):
            raise ImageFormatError(f"{name} is not accepted: {wanted}")
    raise ImageFormatError(f"it is not an image: {wanted}")

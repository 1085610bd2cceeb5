"""Images of a data set: each distinct one is kept once, on disk, and opened with Pillow before anything is asked."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path

from PIL import Image as PillowImage

from evaluation.datasets.item import Image

# Pillow's names of the formats, and the media types under which a server knows them.
MEDIA_TYPES = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "WEBP": "image/webp",
}
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


class ImageStore:
    """Makes `Image`s. What came inside a data file goes to an unnamed temporary file; what is a file stays where it is.

    Equal bytes give one and the same `Image`, whatever they came from.
    """

    def __init__(self) -> None:
        self._by_digest: dict[str, Image] = {}
        self._by_path: dict[Path, Image] = {}
        self._spool = _Spool()

    def from_base64(self, text: str) -> Image:
        """Image from base64, with or without a `data:` prefix; ValueError when it is none."""
        encoded = text.split(",", 1)[1] if text.startswith("data:") and "," in text else text
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("the image is not valid base64") from None
        return self._add(data, self._spool.keep)

    def from_file(self, path: Path) -> Image:
        """Image from a file; ValueError when it cannot be read or is none."""
        if path not in self._by_path:
            try:
                if not path.is_file():
                    path.stat()
                    raise ValueError(f"image file {path}: not a file")
                data = path.read_bytes()
            except OSError as error:
                raise ValueError(f"image file {path}: {error.strerror}") from None
            self._by_path[path] = self._add(data, lambda _: path.read_bytes)
        return self._by_path[path]

    def _add(self, data: bytes, reader: Callable[[bytes], Callable[[], bytes]]) -> Image:
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._by_digest:
            self._by_digest[digest] = Image(
                sha256=digest, media_type=_media_type(data), num_bytes=len(data), read=reader(data)
            )
        return self._by_digest[digest]


class _Spool:
    """An unnamed temporary file that is closed when the last reader of it is gone."""

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix="megaserve-images-")
        Path(name).unlink()
        weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self._size = 0

    def keep(self, data: bytes) -> Callable[[], bytes]:
        """Write `data`; what is returned reads it again, from any thread."""
        offset, view = self._size, memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._size += len(data)
        return partial(self._read, len(data), offset)

    def _read(self, count: int, offset: int) -> bytes:
        return os.pread(self._descriptor, count, offset)


def broken_images(images: Iterable[Image]) -> dict[str, str]:
    """What is wrong with those that cannot be decoded whole, by digest. Each distinct image is looked at once."""
    distinct = list({image.sha256: image for image in images}.values())
    if not distinct:
        return {}
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        # Pillow only warns of an image of up to twice as many pixels as it deems safe; servers refuse it all the same.
        warnings.simplefilter("error", PillowImage.DecompressionBombWarning)
        reasons = list(pool.map(_reason_broken, distinct))
    return {image.sha256: reason for image, reason in zip(distinct, reasons, strict=True) if reason}


def _reason_broken(image: Image) -> str | None:
    try:
        data = image.load()
        with PillowImage.open(BytesIO(data), formats=list(MEDIA_TYPES)) as opened:
            opened.verify()  # of a PNG also what comes after the last pixel; such a file was cut off on its way
        with PillowImage.open(BytesIO(data), formats=list(MEDIA_TYPES)) as opened:
            opened.load()
    except (
        Exception
    ) as error:  # decoders raise whatever a damaged file leads them to: OSError, SyntaxError, struct.error
        return f"the image cannot be decoded: {error}"
    return None


def _media_type(data: bytes) -> str:
    for signature, media_type in _SIGNATURES:
        if data.startswith(signature):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise ValueError("the image is neither PNG, JPEG, GIF, BMP nor WebP")

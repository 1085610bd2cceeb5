"""Small copies of the images in a run directory, for the report alone: RUN/thumbnails/<digest>.webp."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image as PillowImage
from PIL import ImageOps

from evaluation.datasets import Image
from evaluation.errors import RunDirectoryError
from evaluation.run_directory.atomic import write_atomic

SIDE_PIXELS = 96


def write_thumbnails(folder: Path, images: Iterable[Image]) -> None:
    """One file per distinct image that has none yet. An image that has gone since is left out. RunDirectoryError when
    a file cannot be written."""
    missing = {image.sha256: image for image in images if not _path(folder, image.sha256).exists()}
    with ThreadPoolExecutor() as pool:
        for image, data in zip(missing.values(), pool.map(_thumbnail, missing.values()), strict=True):
            if data:
                _write(_path(folder, image.sha256), data)


def thumbnail_url(folder: Path, digest: str) -> str | None:
    """The thumbnail inside a `data:` URL; None when there is none."""
    try:
        data = _path(folder, digest).read_bytes()
    except OSError:
        return None
    return f"data:image/webp;base64,{base64.b64encode(data).decode()}"


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomic(path, data)
    except OSError as error:
        raise RunDirectoryError(f"cannot write {path}: {error.strerror}") from None


def _path(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.webp"


def _thumbnail(image: Image) -> bytes | None:
    try:
        opened = PillowImage.open(io.BytesIO(image.load()))
        small = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError):
        return None
    small.thumbnail((SIDE_PIXELS, SIDE_PIXELS))
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=60)
    return buffer.getvalue()

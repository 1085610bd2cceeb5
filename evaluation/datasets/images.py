"""Image cells of a table: base64, a list of base64, a short reference to another row, or paths."""

from __future__ import annotations

import ast
import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from evaluation.datasets.item import Image

MAX_REFERENCE_LENGTH = 64  # a shorter cell names another row, as in VLMEvalKit

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


def read_images(columns: Mapping[str, str], cells: Mapping[str, str], folder: Path) -> tuple[Image, ...]:
    """Images of one row. `cells`: the image cell of every row by index. `folder`: where relative paths start.

    ValueError says what is wrong with the row.
    """
    if cell := columns.get("image", ""):
        return tuple(decode_image(text) for text in parse_cell_list(_resolve_reference(cell, cells)))
    if cell := columns.get("image_path", ""):
        return tuple(read_image_file(folder / name) for name in parse_cell_list(cell))
    return ()


def _resolve_reference(cell: str, cells: Mapping[str, str]) -> str:
    if len(cell) > MAX_REFERENCE_LENGTH:
        return cell
    target = cells.get(cell)
    if target is None or len(target) <= MAX_REFERENCE_LENGTH:
        raise ValueError(f"the image cell names row {cell!r}, which holds no image")
    return target


def parse_cell_list(cell: str) -> list[str]:
    """A cell that is one value, or a list literal of values (JSON or Python notation)."""
    if not cell.lstrip().startswith("["):
        return [cell]
    try:
        values = json.loads(cell)
    except ValueError:
        values = _parse_python_list(cell)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("a list of images must hold texts only")
    return values


def _parse_python_list(cell: str) -> object:
    try:
        return ast.literal_eval(cell)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError("the image cell starts like a list but is none") from None


def decode_image(text: str) -> Image:
    """Image from base64, with or without a `data:` prefix."""
    encoded = text.split(",", 1)[1] if text.startswith("data:") and "," in text else text
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the image is not valid base64") from None
    return make_image(data)


def read_image_file(path: Path) -> Image:
    """Image from a file."""
    try:
        return make_image(path.read_bytes())
    except OSError as error:
        raise ValueError(f"image file {path}: {error.strerror}") from None


def make_image(data: bytes) -> Image:
    """Image from its encoded bytes; ValueError when they start like no known format."""
    return Image(data=data, sha256=hashlib.sha256(data).hexdigest(), media_type=_media_type(data))


def _media_type(data: bytes) -> str:
    for signature, media_type in _SIGNATURES:
        if data.startswith(signature):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise ValueError("the image is neither PNG, JPEG, GIF, BMP nor WebP")

"""Images as clients send them: data URLs and base64, strictly; addresses, which others may fetch; never a path."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple

from server.errors import RequestError
from server.frontend.field_checks import shown

_DATA_URL = re.compile(r"data:(?P<type>[-\w.+/]*)(?:;[-\w=.]+)*;base64,", re.ASCII)


_INLINE_CHARACTERS = 1 << 18
"""Longer base64 is decoded later, off the event loop, in pieces of this length (a multiple of 4)."""


class RemoteImage(NamedTuple):
    """An image that is somewhere else."""

    address: str


class Base64Image(NamedTuple):
    """A large image, not decoded yet. field: its JSON path."""

    encoded: str
    field: str

    def decode(self) -> bytes:
        """For a thread: every piece holds the interpreter's lock for itself alone. Raises RequestError."""
        starts = range(0, len(self.encoded), _INLINE_CHARACTERS)
        pieces = [self.encoded[start : start + _INLINE_CHARACTERS] for start in starts]
        if any("=" in piece for piece in pieces[:-1]):
            raise RequestError(f"{self.field} is not base64: padding before the end", field=self.field)
        return b"".join(_decoded(piece, self.field) for piece in pieces)


ImageSource = bytes | RemoteImage | Base64Image


def image_source(text: str, field: str) -> ImageSource:
    """The encoded image of a data URL or of plain base64, or where it will come from.

    Raises RequestError naming `field`.
    """
    if text[:8].lower().startswith(("http://", "https://")):
        return RemoteImage(text)
    encoded = text
    if text[:5].lower() == "data:":
        header = _DATA_URL.match(text)
        if header is None:
            raise RequestError(f"{field} must be data:image/...;base64,... but is {shown(text[:60])}", field=field)
        encoded = text[header.end() :]
    if not encoded:
        raise RequestError(f"{field} is empty", field=field)
    return _decoded(encoded, field) if len(encoded) <= _INLINE_CHARACTERS else Base64Image(encoded, field)


def images_of_prompts(image_data: Any, num_prompts: int, is_batch: bool) -> list[list[ImageSource]]:
    """`image_data` of /generate: one image or a list for one prompt; for a batch a list with that for each prompt.

    Raises RequestError naming the place of what is not so.
    """
    if image_data is None or image_data == []:
        return [[] for _ in range(num_prompts)]
    if not is_batch:
        return [_images(image_data, "image_data")]
    if not isinstance(image_data, list) or len(image_data) != num_prompts:
        found = f"{len(image_data)} entries" if isinstance(image_data, list) else "no list"
        raise RequestError(
            f"image_data has {found} for {num_prompts} prompts; give one for each: an image, a list of them, or null",
            field="image_data",
        )
    return [_images(entry, f"image_data[{index}]") for index, entry in enumerate(image_data)]


def _decoded(encoded: str, field: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{field} is not base64: {error}", field=field) from error


def _images(entry: Any, field: str) -> list[ImageSource]:
    if entry is None:
        return []
    if isinstance(entry, str):
        return [image_source(entry, field)]
    if not isinstance(entry, list) or not all(isinstance(item, str) for item in entry):
        raise RequestError(f"{field} must be base64 text or a list of it, but is {shown(entry)}", field=field)
    return [image_source(item, f"{field}[{index}]") for index, item in enumerate(entry)]

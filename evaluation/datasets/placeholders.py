"""Where images stand in a text: at its `<image>` markers, or all before it."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.datasets.item import Content, Image

IMAGE_MARKER = "<image>"


def place_images(text: str, images: Sequence[Image]) -> Content:
    """Images at the markers of a text, or at its head when it has none. Without images a marker is just text.

    ValueError when the number of markers is another than that of the images.
    """
    if not images:
        return text
    pieces = text.split(IMAGE_MARKER)
    if len(pieces) == 1:
        return (*images, text) if text else tuple(images)
    if len(pieces) - 1 != len(images):
        raise ValueError(f"the text has {len(pieces) - 1} {IMAGE_MARKER} markers, the row {len(images)} images")
    parts: list[str | Image] = []
    for piece, image in zip(pieces, [*images, None], strict=True):
        # A line end beside a marker only separates it from the text.
        parts += [stripped] if (stripped := piece.strip("\n")) else []
        parts += [image] if image else []
    return tuple(parts)

"""Where a prompt's images go, as text segments and image indices.

Two entrances: the text of `/generate`, in which `<image>` is a marker when images come with it; and chat, where only
content parts place images, so that the rendered template carries marks which no text of the request can contain.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from image_preprocessing.errors import PlaceholderError

IMAGE_MARKER = "<image>"

Segment = str | int
"""A stretch of text, never empty and never tokenised with special tokens; or an image's index in the request."""


def place_images(text: str, num_images: int, marker: str = IMAGE_MARKER) -> list[Segment]:
    """Segments of a `/generate` text.

    Without images a marker is text like any other. Without a marker the images go first, in order.
    Raises PlaceholderError where their numbers differ.
    """
    if num_images == 0:
        return _non_empty([text])
    texts = text.split(marker)
    num_markers = len(texts) - 1
    if num_markers == 0:
        return _non_empty([*range(num_images), text])
    if num_markers != num_images:
        images = f"{num_images} image{'s' if num_images > 1 else ''}"
        markers = f"{num_markers} {marker} marker{'s' if num_markers > 1 else ''}"
        raise PlaceholderError(f"{images} for {markers}: send as many images as markers, or no marker")
    return _interleave(texts)


def image_marks(num_images: int) -> list[str]:
    """A mark for each image, to stand for it in a chat template, good for one rendering.

    They are drawn at random: whatever a request's texts say, and however a template joins them, they forge no mark.
    """
    nonce = secrets.token_hex(16)
    return [f"\ue000{nonce}:{index}\ue001" for index in range(num_images)]


def split_at_marks(rendered: str, marks: Sequence[str]) -> list[Segment]:
    """Segments of a rendered chat prompt.

    Raises PlaceholderError for a template that leaves an image out, repeats one or changes their order.
    """
    texts: list[str] = []
    rest = rendered
    for index, mark in enumerate(marks):
        before, found, rest = rest.partition(mark)
        if not found or mark in rest:
            places = f"places image {index + 1} of {len(marks)} {rendered.count(mark)} times"
            raise PlaceholderError(
                f"the chat template {places}, or after a later one: it must place each once, in order"
            )
        texts.append(before)
    return _interleave([*texts, rest])


def _interleave(texts: Sequence[str]) -> list[Segment]:
    """A text, image 0, a text, image 1, ..., a text."""
    segments: list[Segment] = [texts[0]]
    for index, text in enumerate(texts[1:]):
        segments += [index, text]
    return _non_empty(segments)


def _non_empty(segments: Sequence[Segment]) -> list[Segment]:
    return [segment for segment in segments if segment != ""]

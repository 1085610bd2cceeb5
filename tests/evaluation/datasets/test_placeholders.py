"""Where the images of a text stand."""

from __future__ import annotations

import pytest

from evaluation.datasets import Image
from evaluation.datasets.placeholders import place_images

A, B = (Image(sha256=name, media_type="image/png", num_bytes=1, read=bytes) for name in "ab")


@pytest.mark.parametrize(
    ("text", "images", "content"),
    [
        ("what?", [], "what?"),
        ("a literal <image>", [], "a literal <image>"),
        ("what?", [A, B], (A, B, "what?")),
        ("", [A], (A,)),
        ("<image>\nwhat?", [A], (A, "what?")),
        ("this <image> or this\n<image>", [A, B], ("this ", A, " or this", B)),
    ],
)
def test_places(text, images, content):
    assert place_images(text, images) == content


def test_other_number_of_markers():
    with pytest.raises(ValueError, match="1 <image> markers, the row 2 images"):
        place_images("<image>", [A, B])

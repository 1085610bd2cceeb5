"""Truncated and mutated files: an error that says so, or the picture; never another exception."""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from image_preprocessing.decode import decode_image
from image_preprocessing.errors import ImageDecodeError, ImageError
from image_preprocessing.limits import ImageLimits

SMALL = ImageLimits(max_pixels=1_000_000)


def sample(format: str, **options) -> bytes:
    generator = random.Random(7)
    image = Image.frombytes("RGB", (48, 40), generator.randbytes(48 * 40 * 3))
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


SAMPLES = {
    "png": sample("PNG"),
    "jpeg": sample("JPEG"),
    "progressive": sample("JPEG", progressive=True),
    "webp": sample("WEBP"),
    "lossless webp": sample("WEBP", lossless=True),
    "gif": sample("GIF"),
    "bmp": sample("BMP"),
}


@pytest.mark.parametrize("name", list(SAMPLES))
@pytest.mark.parametrize("percent", [1, 5, 20, 50, 80, 95])
def test_a_truncated_file_is_refused(name, percent):
    data = SAMPLES[name]
    with pytest.raises(ImageDecodeError, match=r"^damaged or truncated|^damaged .* header"):
        decode_image(data[: max(8, len(data) * percent // 100)])


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(SAMPLES)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
    st.booleans(),
)
def test_mutated_bytes_give_an_error_of_ours_or_a_picture(name, changes, near_the_start):
    data = bytearray(SAMPLES[name])
    reach = min(64, len(data)) if near_the_start else len(data)
    for place, value in changes:
        data[int(place * reach)] = value
    try:
        decoded = decode_image(bytes(data), num_frames=2, limits=SMALL)
    except ImageError as error:
        assert str(error)
    else:
        assert decoded.frames[0].mode == "RGB"
        assert decoded.width * decoded.height <= SMALL.max_pixels

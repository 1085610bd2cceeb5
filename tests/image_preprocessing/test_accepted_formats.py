"""Formats by signature: five are decoded, the rest are refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from image_preprocessing.decode import decode_image
from image_preprocessing.errors import ImageDecodeError, ImageFormatError
from image_preprocessing.header import ACCEPTED_FORMATS
from image_preprocessing.webp_header import webp_canvas_size


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP"])
def test_lossless_formats_give_the_pixels_back(format, encode):
    pixels = np.zeros((5, 7, 3), np.uint8)
    pixels[1:4, 2:5] = (255, 0, 85)
    decoded = decode_image(encode(Image.fromarray(pixels), format, lossless=True))
    assert decoded.format == format
    assert (decoded.width, decoded.height) == (7, 5)
    assert np.array_equal(np.asarray(decoded.frames[0]), pixels)


@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg(progressive, encode):
    data = encode(Image.new("RGB", (33, 17), (250, 10, 10)), "JPEG", progressive=progressive, quality=95)
    decoded = decode_image(data)
    assert decoded.format == "JPEG"
    assert np.abs(np.asarray(decoded.frames[0]).astype(int) - (250, 10, 10)).max() <= 3


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no bytes"),
        (b"hello, this is a text file\n" * 10, "not an image"),
        (b"\0", "not an image"),
        (b"%PDF-1.7 ...", "PDF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"\0\0\0\x1cftypavif" + bytes(30), "AVIF"),
    ],
)
def test_other_files_are_refused_by_name(data, says):
    with pytest.raises(ImageFormatError, match=says):
        decode_image(data)


def test_tiff_is_refused_although_pillow_reads_it(encode):
    with pytest.raises(ImageFormatError, match=r"TIFF is not accepted: send PNG, JPEG, WEBP, GIF or BMP"):
        decode_image(encode(Image.new("RGB", (4, 4)), "TIFF"))


def test_a_signature_alone_is_damage_not_a_crash():
    for signature in (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"GIF89a", b"BM"):
        with pytest.raises(ImageDecodeError, match="damaged"):
            decode_image(signature)
    assert len(ACCEPTED_FORMATS) == 5


@pytest.mark.parametrize("options", [{"quality": 50}, {"lossless": True}, {"save_all": True, "append_images": 1}])
@pytest.mark.parametrize("size", [(1, 1), (17, 300), (1025, 3)])
def test_webp_size_is_what_pillow_finds(options, size, encode):
    image = Image.new("RGBA", size, (1, 2, 3, 128))
    if "append_images" in options:
        options = {"save_all": True, "append_images": [Image.new("RGB", size, "red")]}
    assert webp_canvas_size(encode(image, "WEBP", **options)) == size


def test_an_unknown_webp_chunk_is_damage():
    with pytest.raises(ImageDecodeError, match="first chunk"):
        decode_image(b"RIFF\x40\0\0\0WEBPJUNK" + bytes(64))

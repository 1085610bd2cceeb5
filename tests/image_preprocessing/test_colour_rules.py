"""Every pixel format to RGB by its stated rule, against values worked out by hand or in numpy."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from image_preprocessing.colour import to_rgb
from image_preprocessing.decode import decode_image
from image_preprocessing.errors import ImageDecodeError

GREEN = (0, 128, 0)


def pixels(data, **options):
    return np.asarray(decode_image(data, **options).frames[0])


def blend(value, alpha, background):
    return np.round((np.array(value) * alpha + np.array(background) * (255 - alpha)) / 255)


@pytest.mark.parametrize("alpha", [0, 1, 100, 254, 255])
@pytest.mark.parametrize("background", [(255, 255, 255), GREEN])
def test_rgba_is_composited(alpha, background, encode):
    data = encode(Image.new("RGBA", (2, 2), (200, 10, 60, alpha)))
    assert np.abs(pixels(data, background=background)[0, 0] - blend((200, 10, 60), alpha, background)).max() <= 1


def test_grey_with_alpha_is_composited(encode):
    data = encode(Image.new("LA", (2, 2), (200, 51)))
    assert np.abs(pixels(data, background=GREEN)[0, 0] - blend((200, 200, 200), 51, GREEN)).max() <= 1


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_transparent_palette_entry_shows_the_background(format, encode):
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    data = encode(image, format, transparency=1)
    assert pixels(data, background=GREEN).tolist() == [[[255, 0, 0], list(GREEN)]]


def test_palette_with_alpha_values(encode):
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    row = pixels(encode(image, transparency=bytes([255, 0])), background=GREEN)[0]
    assert row.tolist() == [[255, 0, 0], list(GREEN)]


@pytest.mark.parametrize(("mode", "colour", "key"), [("RGB", (9, 8, 7), (9, 8, 7)), ("L", 9, 9)])
def test_colour_key_shows_the_background(mode, colour, key, encode):
    image = Image.new(mode, (2, 1), colour)
    image.putpixel((1, 0), tuple(c + 1 for c in colour) if mode == "RGB" else 10)
    row = pixels(encode(image, transparency=key), background=GREEN)[0]
    assert row[0].tolist() == list(GREEN)
    assert row[1].tolist() == ([10, 9, 8] if mode == "RGB" else [10, 10, 10])


def test_sixteen_bit_grey_keeps_its_high_byte(encode):
    values = np.array([[0, 255, 256, 0x1234, 0x80FF, 0xFFFF]], np.uint16)
    assert pixels(encode(Image.fromarray(values)))[0, :, 0].tolist() == [0, 0, 1, 0x12, 0x80, 0xFF]


def test_sixteen_bit_grey_with_a_colour_key():
    image = Image.fromarray(np.array([[0x1234, 0x1235]], np.uint16))
    image.info["transparency"] = 0x1234
    assert np.asarray(to_rgb(image, GREEN)).tolist() == [[list(GREEN), [0x12] * 3]]


def png(bit_depth, colour_type, row, key=()):
    """One row of a PNG that Pillow would not write; its width follows from the row."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    samples = {0: 1, 2: 3, 4: 2, 6: 4}[colour_type]
    header = struct.pack(">IIBBBBB", len(row) * 8 // bit_depth // samples, 1, bit_depth, colour_type, 0, 0, 0)
    transparency = chunk(b"tRNS", struct.pack(f">{len(key)}H", *key)) if key else b""
    picture = chunk(b"IDAT", zlib.compress(b"\0" + row))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + transparency + picture + chunk(b"IEND", b"")


def test_sixteen_bit_rgb_keeps_its_high_bytes():
    row = struct.pack(">6H", 0x12FF, 0xAB00, 0xFFFF, 0, 0x00FF, 0x0100)
    assert pixels(png(16, 2, row)).tolist() == [[[0x12, 0xAB, 0xFF], [0, 0, 1]]]
    keyed = pixels(png(16, 2, row, key=(0x12FF, 0xAB00, 0xFFFF)), background=GREEN)
    assert keyed.tolist() == [[list(GREEN), [0, 0, 1]]]


def test_sixteen_bits_with_alpha():
    assert pixels(png(16, 4, b"\x80\x00\x80\x00"), background=GREEN).tolist() == [[[64, 128, 64]]]
    assert pixels(png(16, 6, b"\x80\x00\x00\x00\xff\xff\x80\x00"), background=GREEN).tolist() == [[[64, 64, 128]]]


@pytest.mark.parametrize(
    ("bit_depth", "row", "greys"),
    [(1, b"\x1b", [0, 0, 0, 255]), (2, b"\x1b", [0, 85, 170, 255]), (4, b"\x5a", [85, 170])],
)
def test_grey_of_few_bits_and_its_colour_key(bit_depth, row, greys):
    assert pixels(png(bit_depth, 0, row))[0, : len(greys), 0].tolist() == greys
    key = greys[1] * (2**bit_depth - 1) // 255
    shown = pixels(png(bit_depth, 0, row, key=(key,)), background=GREEN)[0, : len(greys)]
    assert [list(GREEN) if grey == greys[1] else [grey] * 3 for grey in greys] == shown.tolist()


def test_one_bit(encode):
    image = Image.new("1", (2, 1))
    image.putpixel((1, 0), 1)
    assert pixels(encode(image)).tolist() == [[[0, 0, 0], [255, 255, 255]]]


def test_grey_is_repeated(encode):
    assert pixels(encode(Image.new("L", (1, 1), 77))).tolist() == [[[77, 77, 77]]]


@pytest.mark.parametrize(
    ("ink", "colour"),
    [
        ((0, 0, 0, 0), (255, 255, 255)),
        ((0, 0, 0, 255), (0, 0, 0)),
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 255, 255, 0), (255, 0, 0)),
    ],
)
def test_cmyk_jpeg(ink, colour, encode):
    data = encode(Image.new("CMYK", (16, 16), ink), "JPEG", quality=100)
    assert np.abs(pixels(data).astype(int) - colour).max() <= 2


@pytest.mark.parametrize("mode", ["F", "I", "LAB", "HSV"])
def test_other_pixel_formats_are_refused_by_name(mode):
    with pytest.raises(ImageDecodeError, match=f"pixel format {mode} "):
        to_rgb(Image.new(mode, (2, 2)))

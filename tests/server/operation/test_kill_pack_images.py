"""Pictures that have killed servers, against a real engine: refused or answered, and the next request is well."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def well_afterwards(real_server: Any) -> Iterator[None]:
    yield
    real_server.assert_well()


def file_of(picture: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def gradient(width: int = 48, height: int = 32) -> Image.Image:
    """No two edges alike, so that a wrong turn changes the answer."""
    picture = Image.new("RGB", (width, height))
    picture.putdata([(5 * x % 256, 8 * y % 256, (x * y) % 256) for y in range(height) for x in range(width)])
    return picture


def ask(server: Any, *files: bytes, text: str = "what", **more: Any) -> httpx.Response:
    images = [base64.b64encode(file).decode() for file in files]
    reply: httpx.Response = server.generate(text, image_data=images, **more)
    return reply


def refused(reply: httpx.Response, *words: str) -> None:
    assert reply.status_code == 400, reply.text[:500]
    message = reply.json()["error"]["message"]
    assert all(word in message for word in words), message


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1)])
def test_thin_pictures(real_server: Any, size: tuple[int, int]) -> None:
    reply = ask(real_server, file_of(Image.new("RGB", size, "teal"), "PNG"))
    assert reply.status_code == 200, reply.text


def test_truncated_files(real_server: Any) -> None:
    for format in ("JPEG", "PNG", "WEBP"):
        whole = file_of(gradient(), format)
        for share in (0.1, 0.5, 0.95):
            refused(ask(real_server, whole[: int(len(whole) * share)]), "image 1")


def test_a_picture_too_large_is_refused_from_its_header(real_server: Any) -> None:
    """20,000 x 20,000 pixels in a few KB; the data of a smaller one is not even looked at."""
    bomb = png_of_zeros(20_000, 20_000)
    assert len(bomb) < 400_000
    refused(ask(real_server, bomb), "20000x20000")
    refused(ask(real_server, bomb[:60]), "20000x20000")


def png_of_zeros(width: int, height: int) -> bytes:
    compress = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join(compress.compress(row) for _ in range(height)) + compress.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def test_animations_show_their_first_frame(real_server: Any) -> None:
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "blue", "green")]
    moving = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    still = file_of(frames[0], "GIF")
    assert ask(real_server, moving).json()["output_ids"] == ask(real_server, still).json()["output_ids"]


@pytest.mark.parametrize(
    ("mode", "format"),
    [("I;16", "PNG"), ("CMYK", "JPEG"), ("P", "PNG"), ("RGBA", "PNG"), ("LA", "PNG"), ("1", "PNG"), ("L", "JPEG")],
)
def test_other_pixel_formats(real_server: Any, mode: str, format: str) -> None:
    picture = Image.new("I;16", (40, 30), 40_000) if mode == "I;16" else gradient().convert(mode)
    reply = ask(real_server, file_of(picture, format))
    assert reply.status_code == 200, reply.text


def test_a_palette_with_transparency_is_composited(real_server: Any) -> None:
    """Transparent pixels show the background, whatever colour their palette entry has."""
    outputs = []
    for hidden in ((255, 0, 0), (0, 0, 255)):
        picture = Image.new("P", (40, 40), 0)
        picture.putpalette([*hidden, 10, 200, 30])
        picture.paste(1, (0, 0, 20, 40))
        outputs.append(ask(real_server, file_of(picture, "PNG", transparency=0)).json()["output_ids"])
    assert outputs[0] == outputs[1]


def test_each_exif_orientation_is_the_picture_that_a_viewer_shows(real_server: Any) -> None:
    """Losslessly: the upright picture, stored turned and marked, gets the upright one's answer."""
    upright = gradient()
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    expected = ask(real_server, file_of(upright, "PNG")).json()["output_ids"]
    for orientation, turn in undo.items():
        stored = upright if turn is None else upright.transpose(turn)
        exif = Image.Exif()
        exif[0x0112] = orientation
        reply = ask(real_server, file_of(stored, "PNG", exif=exif))
        assert reply.json()["output_ids"] == expected, orientation


@pytest.mark.parametrize(("text", "num_images"), [("<image> <image>", 1), ("<image>", 2), ("<image>" * 20, 3)])
def test_markers_and_images_that_differ_in_number(real_server: Any, text: str, num_images: int) -> None:
    files = [file_of(gradient(40 + i, 30), "PNG") for i in range(num_images)]
    refused(ask(real_server, *files, text=text), str(num_images), str(text.count("<image>")))


def test_more_images_than_allowed_or_than_fit(real_server: Any) -> None:
    file = file_of(gradient(), "PNG")
    refused(ask(real_server, *[file] * 17), "16", "17", "--max-images")
    refused(ask(real_server, *[file] * 16, text="word " * 400), "512")


def test_what_is_no_picture(real_server: Any) -> None:
    for data in (
        b"%PDF-1.4",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"\0" * 100,
    ):
        refused(ask(real_server, data), "image 1")
    for text in ("not base64!", "aGk", "aGk==", "data:image/png;base64,@@", "data:text/html,hi", "aGk=\n"):
        refused(real_server.generate("x", image_data=text), "image_data")

"""Limits answer from the header: what is too large is never decoded."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
import warnings
import zlib

import pytest
from PIL import Image, ImageFile

from image_preprocessing.decode import decode_image
from image_preprocessing.errors import ImageDecodeError, ImageLimitError
from image_preprocessing.header import open_image
from image_preprocessing.limits import ImageLimits


def png(width: int, height: int, idat: bytes = b"", bit_depth: int = 8, colour_type: int = 0) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", idat) + chunk(b"IEND", b"")


def bomb() -> bytes:
    """A whole, valid 8-bit grey PNG of 20000x20000 pixels in under 400 KB."""
    compressor = zlib.compressobj(9, wbits=-15)
    rows = compressor.compress(bytes(20_001 * 500)) + compressor.flush(
        zlib.Z_FULL_FLUSH
    )  # stands alone: repeated below
    checksum = (20_001 * 20_000 % 65_521 << 16) + 1  # Adler-32 of zeros
    data = png(20_000, 20_000, b"\x78\xda" + rows * 40 + compressor.flush() + struct.pack(">I", checksum))
    assert len(data) < 400_000
    return data


def test_the_bomb_is_a_whole_picture():
    """So that what refuses it is the limit: its pixels inflate to the declared size, with the right checksum."""
    data = bomb()
    inflater, size = zlib.decompressobj(), 0
    rest = data[data.index(b"IDAT") + 4 : -16]
    while rest and not inflater.eof:
        size += len(inflater.decompress(rest, 1 << 24))
        rest = inflater.unconsumed_tail
    assert inflater.eof
    assert size == 20_001 * 20_000


MEASURE = """
import sys, tracemalloc
from pathlib import Path
from image_preprocessing.decode import decode_image
from image_preprocessing.errors import ImageLimitError
from image_preprocessing.limits import ImageLimits

def peak_kib():
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM")).split()[1])

decode_image(Path(sys.argv[1]).read_bytes())
data = Path(sys.argv[2]).read_bytes()
tracemalloc.start()
before = peak_kib()
try:
    decode_image(data)
except ImageLimitError as error:
    print(error)
print(peak_kib() - before, tracemalloc.get_traced_memory()[1] // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_decompression_bomb_is_refused_without_decoding(tmp_path, encode):
    data = bomb()
    (tmp_path / "small.png").write_bytes(encode(Image.new("L", (8, 8))))
    (tmp_path / "bomb.png").write_bytes(data)
    command = [sys.executable, "-c", MEASURE, tmp_path / "small.png", tmp_path / "bomb.png"]
    reason, growth = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert reason == "20000x20000 pixels; at most 50,000,000 in all are accepted"
    for kib in growth.split():
        assert int(kib) < 20 * 1024


def jpeg_declaring(width: int, height: int, whole: bytes) -> bytes:
    """The file, with another size in its frame header (SOF0)."""
    at = whole.index(b"\xff\xc0") + 5
    return whole[:at] + struct.pack(">HH", height, width) + whole[at + 4 :]


def test_huge_declared_sizes(encode):
    gif = bytearray(encode(Image.new("P", (2, 2)), "GIF"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    bmp = bytearray(encode(Image.new("RGB", (2, 2)), "BMP"))
    bmp[18:26] = struct.pack("<ii", 2**30, 2**30)
    webp = bytearray(
        encode(Image.new("RGB", (2, 2)), "WEBP", save_all=True, append_images=[Image.new("RGB", (2, 2), "red")])
    )
    webp[24:30] = b"\xff" * 6
    files = {
        "png": png(2**31 - 1, 2**31 - 1),
        "jpeg": jpeg_declaring(65535, 65535, encode(Image.new("RGB", (2, 2)), "JPEG")),
        "gif": bytes(gif),
        "bmp": bytes(bmp),
        "webp": bytes(webp),
    }
    for data in files.values():
        with warnings.catch_warnings(), pytest.raises(ImageLimitError) as caught:
            warnings.simplefilter("error")
            decode_image(data)
        assert caught.value.limit == "max_side"
        assert caught.value.found > caught.value.allowed == 20_000


def test_sizes_that_are_no_sizes():
    for width, height in ((0, 5), (5, 0)):
        with pytest.raises(ImageDecodeError):
            decode_image(png(width, height))


def test_every_limit_is_a_boundary(encode):
    data = encode(Image.new("RGB", (40, 25)))
    kept = ImageLimits(max_bytes=len(data), max_side=40, max_pixels=1000)
    assert decode_image(data, limits=kept).width == 40
    for name, value in (("max_bytes", len(data) - 1), ("max_side", 39), ("max_pixels", 999)):
        with pytest.raises(ImageLimitError) as caught:
            decode_image(data, limits=ImageLimits(**{name: value}))
        assert (caught.value.limit, caught.value.allowed, caught.value.found) == (name, value, value + 1)
        assert f"{value:,}" in str(caught.value)


def test_no_limit_depends_on_or_changes_the_state_of_pillow(encode, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    data = encode(Image.new("RGB", (100, 100)))
    assert decode_image(data).width == 100
    with pytest.raises(ImageLimitError):
        decode_image(data, limits=ImageLimits(max_pixels=9_999))
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_scans_of_a_progressive_jpeg_are_bounded(encode, noise):
    data = encode(noise(64, 64), "JPEG", progressive=True)
    last_scan = data[data.rindex(b"\xff\xda") : -2]
    assert decode_image(data).width == 64
    with pytest.raises(ImageLimitError, match="scans"):
        open_image(data[:-2] + last_scan * 200 + data[-2:], ImageLimits())


@pytest.mark.parametrize("limits", [{"max_pixels": 0}, {"max_bytes": -1}, {"max_pixels": 10**9}])
def test_limits_that_cannot_be(limits):
    with pytest.raises(ValueError, match=next(iter(limits))):
        ImageLimits(**limits)


def test_a_limit_error_crosses_processes():
    error = ImageLimitError("max_side", found=3, allowed=2, reason="too wide")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (copy.limit, copy.found, copy.allowed, str(copy)) == ("max_side", 3, 2, "too wide")

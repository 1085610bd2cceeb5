"""EXIF orientations 1 to 8: an image stored the other way round decodes upright."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import ExifTags, Image

from image_preprocessing.decode import decode_image
from image_preprocessing.pipeline import prepare_image

# How a camera stores an upright picture under each orientation: the inverse of what display has to do.
STORED = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: upright[::-1, ::-1].transpose(1, 0, 2),
    8: lambda upright: np.rot90(upright, -1),
}


@pytest.fixture
def upright():
    """32 high, 48 wide; each quadrant has its colour, in blocks that JPEG keeps."""
    pixels = np.zeros((32, 48, 3), np.uint8)
    pixels[:16, :24], pixels[:16, 24:] = (250, 0, 0), (0, 250, 0)
    pixels[16:, :24], pixels[16:, 24:] = (0, 0, 250), (250, 250, 250)
    return pixels


def stored(upright, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return Image.fromarray(np.ascontiguousarray(STORED[orientation](upright))), exif


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", list(STORED))
def test_decodes_upright(orientation, format, upright, encode):
    image, exif = stored(upright, orientation)
    options = {"lossless": True} if format == "WEBP" else {"quality": 100, "subsampling": 0} if format == "JPEG" else {}
    decoded = decode_image(encode(image, format, exif=exif, **options))
    assert (decoded.width, decoded.height) == (48, 32)
    assert np.abs(np.asarray(decoded.frames[0]).astype(int) - upright).max() <= (6 if format == "JPEG" else 0)


def test_the_plan_is_for_the_upright_size(settings_of, encode, noise):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    prepared = prepare_image(encode(noise(900, 450), exif=exif), settings_of("nvlm"))
    assert prepared.plan.grid == (1, 2)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientations_that_do_not_exist_change_nothing(orientation, upright, encode):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    decoded = decode_image(encode(Image.fromarray(upright), exif=exif))
    assert np.array_equal(np.asarray(decoded.frames[0]), upright)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
@pytest.mark.parametrize("block", [b"Exif\0\0", b"Exif\0\0not a tiff file", b"Exif\0\0MM\0*\xff\xff\xff\xff"])
def test_a_damaged_exif_block_does_not_cost_the_image(block, upright, encode):
    decoded = decode_image(encode(Image.fromarray(upright), "JPEG", exif=block))
    assert (decoded.width, decoded.height) == (48, 32)

"""The way up a photograph is meant: EXIF's Orientation (tag 0x0112, values 1 to 8)."""

from __future__ import annotations

from PIL import ExifTags, Image

_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def exif_orientation(image: Image.Image) -> int:
    """1 to 8 of a decoded image; 1, upright, without EXIF or where it cannot be read.

    The pixels are whole even where the EXIF block is not, so damaged EXIF is no reason to refuse an image.
    """
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # what Pillow raises over a damaged block differs by field and version
        return 1
    return orientation if orientation in _TRANSPOSES else 1


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """The image turned so that it reads as it was meant; itself for 1."""
    transpose = _TRANSPOSES.get(orientation)
    return image if transpose is None else image.transpose(transpose)

"""Bytes to upright RGB frames: the header first, then a full decode, so that nothing damaged gets any further."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image
from PIL.ImageFile import ImageFile

from image_preprocessing.colour import WHITE, Rgb, to_rgb
from image_preprocessing.colour_key import scale_colour_key
from image_preprocessing.damage import damage_reported
from image_preprocessing.frames import count_frames, spread_evenly
from image_preprocessing.header import open_image
from image_preprocessing.limits import DEFAULT_LIMITS, ImageLimits
from image_preprocessing.orientation import exif_orientation, upright


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """format: PNG, JPEG, WEBP, GIF or BMP. frames: at least one, in mode RGB, upright, all of the first one's size.

    The frames stay Pillow's images, for that is what gets resized: as arrays a photograph would be in memory twice.
    """

    format: str
    frames: tuple[Image.Image, ...]

    @property
    def width(self) -> int:
        """In pixels, upright."""
        return self.frames[0].width

    @property
    def height(self) -> int:
        """In pixels, upright."""
        return self.frames[0].height


def decode_image(
    data: bytes, *, num_frames: int = 1, background: Rgb = WHITE, limits: ImageLimits = DEFAULT_LIMITS
) -> DecodedImage:
    """Decode a file: its first frame, or up to `num_frames` spread evenly over an animation.

    Raises ImageError: unknown format, a limit exceeded, truncated or damaged, or a pixel format that is not converted.
    """
    image = _open(data, limits)
    name = str(image.format)
    with damage_reported(f"damaged or truncated {name}"):
        indices = _frame_indices(image, num_frames, limits)
        if len(indices) > 1:
            image = _open(data, limits)  # counting has walked to the end
        frames = [_decode_frame(image, index, len(indices), background, limits) for index in indices]
    first = frames[0]
    return DecodedImage(
        name, tuple(frame if frame.size == first.size else frame.resize(first.size) for frame in frames)
    )


def _open(data: bytes, limits: ImageLimits) -> ImageFile:
    image = open_image(data, limits)
    if image.format == "PNG":
        scale_colour_key(image, data)
    return image


def _frame_indices(image: ImageFile, num_frames: int, limits: ImageLimits) -> tuple[int, ...]:
    if num_frames == 1 or not getattr(image, "is_animated", False):
        return (0,)
    return spread_evenly(count_frames(image, limits), num_frames)


def _decode_frame(image: ImageFile, index: int, num_frames: int, background: Rgb, limits: ImageLimits) -> Image.Image:
    image.seek(index)
    limits.check_size(*image.size, num_frames)
    image.load()
    return upright(to_rgb(image, background), exif_orientation(image))

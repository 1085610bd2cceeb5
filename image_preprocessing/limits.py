"""What an image may cost, checked before the cost arises: bytes, pixels, frames, scans and patches."""

from __future__ import annotations

from dataclasses import dataclass, fields

from image_preprocessing.errors import ImageLimitError

# Beyond twice its MAX_IMAGE_PIXELS Pillow raises by itself in some plugins, whatever a limit of ours says.
_MOST_PIXELS_OF_PILLOW = 178_956_970


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """max_bytes: of the encoded file. max_side: width or height. max_pixels: width times height, summed over the frames
    taken; decoding needs about 8 bytes for each. max_frames, max_animation_pixels: in an animated file, all of which is
    walked through where more than its first frame is taken.
    max_jpeg_scans: passes over the picture in a progressive JPEG, each as long as a decode of its own.
    max_patches: that the encoder gets for one image, over all its tiles.

    Raises ValueError for a limit that is not positive, or more pixels than Pillow decodes.
    """

    max_bytes: int = 32 * 1024 * 1024
    max_side: int = 20_000
    max_pixels: int = 50_000_000
    max_frames: int = 1_000
    max_animation_pixels: int = 500_000_000
    max_jpeg_scans: int = 128
    max_patches: int = 65_536

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}: it must be at least 1")
        if self.max_pixels > _MOST_PIXELS_OF_PILLOW:
            raise ValueError(f"max_pixels is {self.max_pixels}: Pillow decodes at most {_MOST_PIXELS_OF_PILLOW}")

    def check_bytes(self, count: int) -> None:
        """Raises ImageLimitError."""
        self._check("max_bytes", count, f"{count:,} bytes; at most {self.max_bytes:,} are accepted")

    def check_size(self, width: int, height: int, num_frames: int = 1) -> None:
        """Raises ImageLimitError for frames of this size."""
        size = f"{width}x{height} pixels"
        self._check("max_side", max(width, height), f"{size}; at most {self.max_side:,} on a side are accepted")
        frames = f" in {num_frames} frames" if num_frames > 1 else ""
        reason = f"{size}{frames}; at most {self.max_pixels:,} in all are accepted"
        self._check("max_pixels", width * height * num_frames, reason)

    def check_frames(self, count: int, width: int, height: int) -> None:
        """Raises ImageLimitError. `count` may be a lower bound: the walk through a file stops at the first too many."""
        self._check("max_frames", count, f"more than {self.max_frames:,} frames, the most accepted")
        reason = f"{count:,} frames of {width}x{height} pixels; at most {self.max_animation_pixels:,} in all are read"
        self._check("max_animation_pixels", count * width * height, reason)

    def check_jpeg_scans(self, count: int) -> None:
        """Raises ImageLimitError."""
        reason = f"a JPEG of {count:,} scans; at most {self.max_jpeg_scans:,} are accepted"
        self._check("max_jpeg_scans", count, reason)

    def check_patches(self, width: int, height: int, count: int) -> None:
        """Raises ImageLimitError."""
        reason = f"{width}x{height} pixels make {count:,} patches; at most {self.max_patches:,} are encoded"
        self._check("max_patches", count, f"{reason}: send a smaller image")

    def _check(self, name: str, found: int, reason: str) -> None:
        allowed: int = getattr(self, name)
        if found > allowed:
            raise ImageLimitError(name, found=found, allowed=allowed, reason=reason)


DEFAULT_LIMITS = ImageLimits()

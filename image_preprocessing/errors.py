"""Every error this package raises on purpose.

ImagePreprocessingError
├── ImageSettingsError      the arguments describe no image preprocessing that can be done; names the argument
├── PlaceholderError        markers and images of a prompt do not agree
└── ImageError              one image cannot be used; the caller adds the image's number
    ├── ImageFormatError    not an image, or in a format that is not accepted
    ├── ImageLimitError     larger than a limit allows; names limit and value
    ├── ImageDecodeError    damaged, truncated, or in a pixel format that is not converted
    └── ImageSizeError      no plan exists for an image of this width and height
"""

from __future__ import annotations


class ImagePreprocessingError(Exception):
    """Root of the tree."""


class ImageSettingsError(ImagePreprocessingError):
    """`argument` is the argparse destination of the argument at fault; the message begins with it."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(argument, reason)
        self.argument = argument
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.argument}: {self.reason}"


class PlaceholderError(ImagePreprocessingError):
    """The message names both counts."""


class ImageError(ImagePreprocessingError):
    """One image cannot be used; the message is the reason, without the image's number."""


class ImageFormatError(ImageError):
    """Not an image, or in a format that is not accepted."""


class ImageLimitError(ImageError):
    """`limit` is the field of `ImageLimits` that was exceeded, `allowed` its value, `found` the image's."""

    def __init__(self, limit: str, *, found: int, allowed: int, reason: str) -> None:
        super().__init__(limit, found, allowed, reason)
        self.limit = limit
        self.found = found
        self.allowed = allowed
        self.reason = reason

    def __str__(self) -> str:
        return self.reason

    def __reduce__(self) -> tuple[object, ...]:
        # An error made in a worker process is pickled on its way back, and keyword arguments are not.
        return _limit_error, self.args


class ImageDecodeError(ImageError):
    """Damaged, truncated, or in a pixel format that is not converted."""


class ImageSizeError(ImageError):
    """No plan exists for an image of this width and height."""


def _limit_error(limit: str, found: int, allowed: int, reason: str) -> ImageLimitError:
    return ImageLimitError(limit, found=found, allowed=allowed, reason=reason)

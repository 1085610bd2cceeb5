"""Whatever Pillow raises over hostile bytes becomes one error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from image_preprocessing.errors import ImageDecodeError, ImageError


@contextmanager
def damage_reported(what: str) -> Iterator[None]:
    """Turn a parser's exception into ImageDecodeError: `what`, then the parser's words.

    The net is wide on purpose: over damaged bytes Pillow's plugins raise OSError, SyntaxError, ValueError, KeyError,
    IndexError, TypeError, EOFError, struct.error, zlib.error, DecompressionBombError and more, differently by version.
    """
    try:
        yield
    except (ImageError, MemoryError):
        raise
    except Exception as error:
        words = str(error).strip() or type(error).__name__
        raise ImageDecodeError(f"{what}: {words}") from error

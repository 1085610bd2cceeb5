"""What a flag's text may be: each function gives its value, or the error that argparse shows."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from urllib.parse import urlsplit

from evaluation.options import FailureLimit


def url(text: str) -> str:
    """An address without the slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL like http://127.0.0.1:8000")
    return text.rstrip("/")


def positive(text: str) -> int:
    """A whole number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def not_negative(text: str) -> float:
    """A finite number from 0."""
    if (value := _number(text)) < 0:
        raise argparse.ArgumentTypeError(f"{value:g} is negative")
    return value


def seconds(text: str) -> float:
    """A finite number above 0."""
    if (value := _number(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{value:g} is not positive")
    return value


def fraction(text: str) -> float:
    """A number above 0, up to 1."""
    if not 0 < (value := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{value:g} is not in (0, 1]")
    return value


def failure_limit(text: str) -> FailureLimit:
    """`N` rows or `F%` of all."""
    if text.endswith("%"):
        if not 0 <= (value := _number(text[:-1])) <= 100:
            raise argparse.ArgumentTypeError(f"{text} is not between 0% and 100%")
        return FailureLimit(fraction=value / 100)
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{count} is negative")
    return FailureLimit(count=count)


def ids(text: str) -> tuple[str, ...]:
    """Ids between commas, or `@FILE` with one a line."""
    if not text.startswith("@"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{text[1:]}: cannot be read: {error}") from None
    return tuple(line.strip() for line in lines if line.strip())


def condition(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def header_value(text: str) -> str:
    """What may stand in an HTTP header."""
    if not text or not text.isascii() or not text.isprintable():
        raise argparse.ArgumentTypeError("a key has only printable ASCII characters, and at least one")
    return text


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value

"""Base64 of any length is decoded as strictly as the standard library does it at once."""

from __future__ import annotations

import base64
import binascii

import pytest

from server.errors import RequestError
from server.frontend.image_data import Base64Image, RemoteImage, image_source

LENGTHS = [1, 100, 196_606, 196_607, 196_608, 196_609, 400_000, 393_216, 1_000_001]
"""Of images in bytes; 196,608 are as many characters as are decoded at once."""


def decoded(text: str) -> bytes:
    source = image_source(text, "image_data[1]")
    assert not isinstance(source, RemoteImage)
    return source if isinstance(source, bytes) else source.decode()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("prefix", ["", "data:image/png;base64,"])
def test_any_length_is_decoded(length: int, prefix: str) -> None:
    data = bytes(i * 7 % 251 for i in range(length))
    assert decoded(prefix + base64.b64encode(data).decode()) == data


def test_large_ones_are_left_for_later() -> None:
    assert isinstance(image_source("A" * 1_000_000, "image_data"), Base64Image)
    assert isinstance(image_source("A" * 1000, "image_data"), bytes)


LONG = "A" * 2**18


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "A===",
        "QQ==QQ==",
        LONG + "A",
        LONG[:-2] + "==" + LONG,
        LONG[:-1] + "!" + LONG,
        LONG + "\n" + LONG,
        LONG + "é" * 4,
    ],
)
def test_what_is_not_base64_is_refused_wherever_that_shows(text: str) -> None:
    if text:
        with pytest.raises((binascii.Error, ValueError)):
            base64.b64decode(text, validate=True)
    with pytest.raises(RequestError, match=r"not base64|empty") as caught:
        decoded(text)
    assert caught.value.field == "image_data[1]"

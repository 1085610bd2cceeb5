"""One question as data: what every data format is read into."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

type Content = str | tuple[str | Image, ...]
"""What one message holds: a text, or texts and images in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An encoded image that is read when it is sent, so a data set may be larger than memory.

    sha256: hexadecimal digest of the encoded bytes. media_type: from the first bytes, as `image/png`. read: gives the
    bytes.
    """

    sha256: str
    media_type: str
    num_bytes: int
    read: Callable[[], bytes] = field(repr=False, compare=False)

    def load(self) -> bytes:
        """The encoded bytes; ValueError when they are not those that were there when the data set was read."""
        try:
            data = self.read()
        except OSError as error:
            raise ValueError(f"the image can no longer be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ValueError("the image file has changed since the data set was read")
        return data


@dataclass(frozen=True)
class Message:
    """One message of a chat. role: system, user or assistant."""

    role: str
    content: Content


@dataclass(frozen=True, kw_only=True)
class Item:
    """One row.

    item_id: the row's own index, made unique with the row number where it is not. row: from 1; in a JSONL file the line
    number, in a table the number of the row below the header. columns: every column but the image, as text, in file
    order. options: letter to text. references: the acceptable answers, letters for a multiple-choice question.
    messages: a chat given by the row. raw_prompt: text to continue as it is. turns: what the user says, turn by turn.
    error: why this row cannot be asked, None for a good one.
    """

    item_id: str
    row: int
    columns: dict[str, str]
    question: str = ""
    hint: str = ""
    options: dict[str, str] = field(default_factory=dict)
    references: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    messages: tuple[Message, ...] | None = None
    raw_prompt: str | None = None
    turns: tuple[str, ...] = ()
    error: str | None = None

    def as_bad(self, reason: str) -> Item:
        """The same row, marked as one that cannot be asked."""
        return replace(self, error=reason, images=(), messages=None)

    def all_images(self) -> tuple[Image, ...]:
        """The row's images, those inside its messages included, in the order in which they are shown."""
        contents = [message.content for message in self.messages or () if not isinstance(message.content, str)]
        return self.images + tuple(part for content in contents for part in content if isinstance(part, Image))

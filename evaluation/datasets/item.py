"""One question as data: what every data format is read into."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Image:
    """An encoded image. sha256: hexadecimal digest of `data`. media_type: from the first bytes, as `image/png`."""

    data: bytes = field(repr=False)
    sha256: str
    media_type: str


@dataclass(frozen=True, kw_only=True)
class Item:
    """One row.

    item_id: the row's own index, made unique with the row number where it is not. row: from 1; in a JSONL file the line
    number, in a table the number of the row below the header. columns: every column but the image, as text, in file
    order. options: letter to text. references: the acceptable answers, letters for a multiple-choice question.
    messages: a chat given by the row. raw_prompt: text to continue as it is.
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
    messages: tuple[dict[str, str], ...] | None = None
    raw_prompt: str | None = None
    error: str | None = None

    def as_bad(self, reason: str) -> Item:
        """The same row, marked as one that cannot be asked."""
        return replace(self, error=reason, images=())

"""A selected row as the run directory keeps it: all that scoring and exporting need, without images and prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from evaluation.datasets import Item


@dataclass(frozen=True, kw_only=True)
class RunItem:
    """`key` joins it with its outcome in the log; images: digests, in the order in which they are shown. The other
    fields are those of `datasets.Item`."""

    key: str
    item_id: str
    row: int
    columns: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)
    references: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    error: str | None = None

    @classmethod
    def of(cls, key: str, item: Item) -> Self:
        return cls(
            key=key,
            item_id=item.item_id,
            row=item.row,
            columns=item.columns,
            options=item.options,
            references=item.references,
            images=tuple(image.sha256 for image in item.all_images()),
            error=item.error,
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(**{**values, "references": tuple(values["references"]), "images": tuple(values.get("images", ()))})


def encode_items(items: Iterable[RunItem]) -> bytes:
    """One JSON object a line, in the order of the data file."""
    return b"".join(json.dumps(vars(item), separators=(",", ":")).encode() + b"\n" for item in items)


def decode_items(data: bytes) -> list[RunItem]:
    """The inverse of `encode_items`."""
    return [RunItem.from_dict(json.loads(line)) for line in data.splitlines()]

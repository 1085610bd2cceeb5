"""VLMEvalKit's tables: tab-separated, one header line, quoted where a cell holds tabs or line ends.

Every cell stays the text it is ("007", "NA" and "null" survive); nothing is guessed to be a number or missing.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from evaluation.canonical import is_well_formed
from evaluation.datasets.image_store import ImageStore
from evaluation.datasets.images import ImageColumn
from evaluation.datasets.item import Image, Item
from evaluation.datasets.options import gold_letter, options_of_columns
from evaluation.errors import DatasetError

IMAGE_COLUMN = "image"


def read_table(data: bytes, name: str, delimiter: str = "\t") -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table. Bytes that are no UTF-8 come as surrogate escapes, so writing restores them."""
    rows = iterate_table(io.BytesIO(data), name, delimiter)
    return next(rows), list(rows)


def iterate_table(file: BinaryIO, name: str, delimiter: str = "\t") -> Generator[list[str]]:
    """Header and rows, one at a time. DatasetError for a file without a header."""
    csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is less than one image
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    is_empty = True
    try:
        for row in csv.reader(text, delimiter=delimiter):
            if row:
                is_empty = False
                yield row
    except csv.Error as error:
        raise DatasetError(f"{name}: not a tab-separated table: {error}") from None
    finally:
        text.detach()  # the file is the caller's to close
    if is_empty:
        raise DatasetError(f"{name}: the file is empty; a table starts with a header line")


def parse_tsv(file: BinaryIO, path: Path) -> list[Item]:
    """Items of a table; DatasetError when the header is unusable, else a bad row only spoils itself.

    One row is in memory at a time; of the images, the references to where they are kept.
    """
    images = ImageColumn(ImageStore(), path.parent)
    with closing(iterate_table(file, str(path))) as rows:
        header = next(rows)
        _check_header(header, path)
        read = [_read_row(number, header, row, images) for number, row in enumerate(rows, start=1)]
    return [_complete(item, cell, images) for item, cell in read]


def _check_header(header: list[str], path: Path) -> None:
    missing = [name for name in ("index", "question") if name not in header]
    if missing:
        raise DatasetError(f"{path}: column {missing[0]!r} is missing; the columns are: {', '.join(header)}")
    if repeated := {name for name in header if header.count(name) > 1}:
        raise DatasetError(f"{path}: column {min(repeated)!r} appears twice")


def _read_row(
    number: int, header: list[str], row: list[str], images: ImageColumn
) -> tuple[Item, tuple[Image, ...] | str]:
    """The row as far as it can be read by itself, and its image cell (see `ImageColumn.decode`)."""
    padded = row + [""] * (len(header) - len(row))
    columns = dict(zip(header, padded, strict=False))
    cell = columns.pop(IMAGE_COLUMN, "")
    item = Item(item_id=columns["index"] or f"row{number}", row=number, columns=columns)
    if len(row) != len(header):
        return item.as_bad(f"{len(row)} cells where the header has {len(header)}"), ""
    if not all(map(is_well_formed, row)):
        return item.as_bad("not valid UTF-8"), ""
    try:
        return item, images.decode(columns["index"], cell)
    except ValueError as error:
        return item.as_bad(str(error)), ""


def _complete(item: Item, cell: tuple[Image, ...] | str, images: ImageColumn) -> Item:
    if item.error is not None:
        return item
    try:
        return _with_question(item, images.resolve(cell) or images.from_paths(item.columns))
    except ValueError as error:
        return item.as_bad(str(error))


def _with_question(item: Item, images: tuple[Image, ...]) -> Item:
    columns = item.columns
    if not columns["question"].strip() and not images:
        raise ValueError("the question is empty")
    options = options_of_columns(columns)
    answer = columns.get("answer", "")
    gold = gold_letter(answer, options) if options and answer.strip() else answer
    return Item(
        item_id=item.item_id,
        row=item.row,
        columns=columns,
        question=columns["question"],
        hint=columns.get("hint", ""),
        options=options,
        references=_references(gold),
        images=images,
    )


def _references(gold: str) -> tuple[str, ...]:
    return (gold,) if gold.strip() else ()

"""VLMEvalKit's tables: tab-separated, one header line, quoted where a cell holds tabs or line ends.

Every cell stays the text it is ("007", "NA" and "null" survive); nothing is guessed to be a number or missing.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable
from pathlib import Path

from evaluation.canonical import is_well_formed
from evaluation.datasets.images import MAX_REFERENCE_LENGTH, read_images
from evaluation.datasets.item import Item
from evaluation.datasets.options import gold_letter, options_of_columns
from evaluation.errors import DatasetError

IMAGE_COLUMN = "image"


def read_table(data: bytes, name: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table. Bytes that are no UTF-8 come as surrogate escapes, so writing restores them."""
    csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is less than one image
    text = data.decode("utf-8-sig", "surrogateescape")
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter="\t") if row]
    except csv.Error as error:
        raise DatasetError(f"{name}: not a tab-separated table: {error}") from None
    if not rows:
        raise DatasetError(f"{name}: the file is empty; a table starts with a header line")
    return rows[0], rows[1:]


def parse_tsv(data: bytes, path: Path) -> list[Item]:
    """Items of a table; DatasetError when the header is unusable, else a bad row only spoils itself."""
    header, rows = read_table(data, str(path))
    _check_header(header, path)
    cells = _image_cells(header, rows)
    return [_item(number, header, row, cells, path.parent) for number, row in enumerate(rows, start=1)]


def _check_header(header: list[str], path: Path) -> None:
    missing = [name for name in ("index", "question") if name not in header]
    if missing:
        raise DatasetError(f"{path}: column {missing[0]!r} is missing; the columns are: {', '.join(header)}")
    if repeated := {name for name in header if header.count(name) > 1}:
        raise DatasetError(f"{path}: column {min(repeated)!r} appears twice")


def _image_cells(header: list[str], rows: Iterable[list[str]]) -> dict[str, str]:
    """The image cell by index, for rows that refer to another row's image."""
    if IMAGE_COLUMN not in header:
        return {}
    index, image = header.index("index"), header.index(IMAGE_COLUMN)
    cells: dict[str, str] = {}
    for row in rows:
        if len(row) == len(header) and len(row[image]) > MAX_REFERENCE_LENGTH:
            cells.setdefault(row[index], row[image])
    return cells


def _item(number: int, header: list[str], row: list[str], cells: dict[str, str], folder: Path) -> Item:
    padded = row + [""] * (len(header) - len(row))
    columns = dict(zip(header, padded, strict=False))
    kept = {name: text for name, text in columns.items() if name != IMAGE_COLUMN}
    item = Item(item_id=columns["index"] or f"row{number}", row=number, columns=kept)
    if len(row) != len(header):
        return item.as_bad(f"{len(row)} cells where the header has {len(header)}")
    if not all(map(is_well_formed, row)):
        return item.as_bad("not valid UTF-8")
    try:
        return _complete(item, columns, cells, folder)
    except ValueError as error:
        return item.as_bad(str(error))


def _complete(item: Item, columns: dict[str, str], cells: dict[str, str], folder: Path) -> Item:
    images = read_images(columns, cells, folder)
    if not columns["question"].strip() and not images:
        raise ValueError("the question is empty")
    options = options_of_columns(columns)
    answer = columns.get("answer", "")
    gold = gold_letter(answer, options) if options and answer.strip() else answer
    return Item(
        item_id=item.item_id,
        row=item.row,
        columns=item.columns,
        question=columns["question"],
        hint=columns.get("hint", ""),
        options=options,
        references=(gold,) if gold.strip() else (),
        images=images,
    )

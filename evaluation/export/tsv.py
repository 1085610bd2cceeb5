"""VLMEvalKit's result table: the data's columns without the image, in its order, and `prediction`.

A row without an answer has an empty prediction: no error text ever stands in the place of an answer.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluation.datasets.load import RESULT_COLUMN
from evaluation.datasets.tsv import read_table
from evaluation.errors import RunDirectoryError
from evaluation.run_directory.atomic import write_atomic
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem


def export_tsv(path: Path, items: Sequence[RunItem], records: Mapping[str, Record]) -> None:
    """Write the table; it is read back and compared first, cell by cell, so what is on disk is what was meant."""
    header, rows = result_table(items, records)
    data = encode_table(header, rows)
    if read_table(data, path.name) != (header, rows):
        raise RunDirectoryError(f"{path}: a cell does not survive in a tab-separated table; the log has everything")
    write_atomic(path, data)


def result_table(items: Sequence[RunItem], records: Mapping[str, Record]) -> tuple[list[str], list[list[str]]]:
    """Header and rows; a column that only some rows have is empty in the others."""
    names = list(dict.fromkeys(name for item in items for name in item.columns))
    rows = [[item.columns.get(name, "") for name in names] + [_prediction(records.get(item.key))] for item in items]
    return [*names, RESULT_COLUMN], rows


def encode_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    """Tab-separated UTF-8 with quotes where they are needed; bytes that were no UTF-8 come back as they were."""
    buffer = io.StringIO(newline="")
    minimal = csv.writer(buffer, delimiter="\t", lineterminator="\n")
    quoting = csv.writer(buffer, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in [header, *rows]:
        # A carriage return ends a line for readers, but the writer sees no reason in it to quote.
        writer = quoting if any("\r" in cell for cell in row) else minimal
        writer.writerow(row)
    return buffer.getvalue().encode("utf-8", "surrogateescape")


def _prediction(record: Record | None) -> str:
    return record.answer or "" if record else ""

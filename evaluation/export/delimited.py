"""Tab- and comma-separated tables, quoted where it takes quotes, UTF-8."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from evaluation.datasets.tsv import read_table
from evaluation.errors import RunDirectoryError
from evaluation.export.table import ResultTable
from evaluation.run_directory.atomic import write_atomic


def export_tsv(path: Path, table: ResultTable) -> None:
    """Write the table; it is read back and compared first, cell by cell, so what is on disk is what was meant."""
    _export(path, table, "\t")


def export_csv(path: Path, table: ResultTable) -> None:
    """The same, with commas."""
    _export(path, table, ",")


def encode_table(header: Sequence[str], rows: Sequence[Sequence[str]], delimiter: str = "\t") -> bytes:
    """The bytes of a table; those that were no UTF-8 in the data come back as they were."""
    buffer = io.StringIO(newline="")
    minimal = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
    quoting = csv.writer(buffer, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in [header, *rows]:
        # A carriage return ends a line for readers, but the writer sees no reason in it to quote.
        writer = quoting if any("\r" in cell for cell in row) else minimal
        writer.writerow(row)
    return buffer.getvalue().encode("utf-8", "surrogateescape")


def _export(path: Path, table: ResultTable, delimiter: str) -> None:
    data = encode_table(table.header, table.rows, delimiter)
    if read_table(data, path.name, delimiter) != (table.header, table.rows):
        raise RunDirectoryError(f"{path}: a cell does not survive in a delimited table; the log has everything")
    write_atomic(path, data)

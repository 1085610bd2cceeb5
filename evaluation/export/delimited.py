"""Tab- and comma-separated tables, quoted where it takes quotes, UTF-8."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TextIO

from evaluation.datasets.tsv import iterate_table
from evaluation.export.table import ResultTable, check_read_back
from evaluation.run_directory.atomic import replacing


def export_tsv(path: Path, table: ResultTable) -> None:
    """Write the table row by row, and read it back before it takes its name. RunDirectoryError when a cell changed."""
    _export(path, table, "\t")


def export_csv(path: Path, table: ResultTable) -> None:
    """The same, with commas."""
    _export(path, table, ",")


def write_rows(file: TextIO, rows: Iterable[list[str]], delimiter: str = "\t") -> None:
    """The header is one of the rows."""
    minimal = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    quoting = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        # A carriage return ends a line for readers, but the writer sees no reason in it to quote.
        writer = quoting if any("\r" in cell for cell in row) else minimal
        writer.writerow(row)


def read_rows(path: Path, delimiter: str = "\t") -> Iterator[list[str]]:
    """The header and the rows, one at a time."""
    with path.open("rb") as file, closing(iterate_table(file, path.name, delimiter)) as rows:
        yield from rows


def _export(path: Path, table: ResultTable, delimiter: str) -> None:
    with replacing(path) as temporary:
        # Bytes that were no UTF-8 in the data come back as they were.
        with temporary.open("x", encoding="utf-8", errors="surrogateescape", newline="") as file:
            write_rows(file, chain([table.header], table.rows), delimiter)
        check_read_back(path, table, read_rows(temporary, delimiter))

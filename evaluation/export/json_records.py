"""A JSON list of objects, one a row and one a line: VLMEvalKit's PRED_FORMAT=json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from evaluation.errors import RunDirectoryError
from evaluation.export.table import ResultTable, check_read_back
from evaluation.run_directory.atomic import replacing


def export_json(path: Path, table: ResultTable) -> None:
    """Write the table row by row, and read it back before it takes its name. RunDirectoryError when a cell changed."""
    numbers = table.integer_columns
    with replacing(path) as temporary:
        with temporary.open("x", encoding="ascii") as file:
            for number, row in enumerate(table.rows):
                cells = [int(cell) if place in numbers else cell for place, cell in enumerate(row)]
                record = dict(zip(table.header, cells, strict=True))
                file.write((",\n" if number else "[\n") + json.dumps(record))
            file.write("\n]\n" if table.rows else "[]\n")
        check_read_back(path, table, _read_back(temporary, table.header))


def read_records(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of any list of objects, numbers as texts. RunDirectoryError when it is none."""
    try:
        records = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunDirectoryError(f"{path}: not JSON: {error}") from None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise RunDirectoryError(f"{path}: not a list of objects")
    header = list(dict.fromkeys(name for record in records for name in record))
    return header, [[_as_text(record.get(name)) for name in header] for record in records]


def _read_back(path: Path, header: list[str]) -> Iterator[list[str]]:
    """From the lines as they were written, so that one row is in memory at a time."""
    yield header
    with path.open(encoding="ascii") as file:
        for line in file:
            if line.startswith("{"):
                yield [_as_text(value) for value in json.loads(line.rstrip(",\n")).values()]


def _as_text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)

"""Parquet: every column text, `index` whole numbers where all its values are (needs pyarrow)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import batched
from pathlib import Path
from typing import Any

from evaluation.errors import SetupError
from evaluation.export.table import ResultTable, check_read_back
from evaluation.run_directory.atomic import replacing

ROWS_PER_GROUP = 1000


def export_parquet(path: Path, table: ResultTable) -> None:
    """Write the table group by group, and read it back before it takes its name. ValueError for a cell that is no
    UTF-8, RunDirectoryError when a cell changed."""
    arrow, parquet = _pyarrow()
    numbers = table.integer_columns
    types = [arrow.int64() if place in numbers else arrow.string() for place in range(len(table.header))]
    schema = arrow.schema(list(zip(table.header, types, strict=True)))
    with replacing(path) as temporary:
        with parquet.ParquetWriter(temporary, schema) as writer:
            for rows in batched(table.rows, ROWS_PER_GROUP):
                columns = [
                    [int(cell) if place in numbers else _encodable(cell, table.header[place]) for cell in column]
                    for place, column in enumerate(zip(*rows, strict=True))
                ]
                arrays = [arrow.array(column, type=kind) for column, kind in zip(columns, types, strict=True)]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
        check_read_back(path, table, _read_back(parquet, temporary))


def _encodable(cell: str, name: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in cell):
        raise ValueError(f"a cell of {name!r} is not valid UTF-8")
    return cell


def _read_back(parquet: Any, path: Path) -> Iterator[list[str]]:
    with parquet.ParquetFile(path) as file:
        yield list(file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield [str(cell) for cell in row]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]
        import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise SetupError("exporting parquet needs pyarrow: pip install 'megaserve[parquet]'") from None
    return pyarrow, pyarrow.parquet

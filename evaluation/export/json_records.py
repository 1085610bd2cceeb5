"""A JSON list of objects, one a row: VLMEvalKit's PRED_FORMAT=json."""

from __future__ import annotations

import json
from pathlib import Path

from evaluation.errors import RunDirectoryError
from evaluation.export.table import ResultTable
from evaluation.run_directory.atomic import write_atomic


def export_json(path: Path, table: ResultTable) -> None:
    """Write the table, read back and compared first."""
    numbers = table.integer_columns
    records = [
        {
            name: int(cell) if place in numbers else cell
            for place, (name, cell) in enumerate(zip(table.header, row, strict=True))
        }
        for row in table.rows
    ]
    data = json.dumps(records, indent=4).encode()
    if json.loads(data) != records:
        raise RunDirectoryError(f"{path}: a cell does not survive in JSON; the log has everything")
    write_atomic(path, data)

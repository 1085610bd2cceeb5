"""Answers of an earlier result file, taken over instead of asking again, and marked so in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import time

from evaluation.answers import error_of
from evaluation.console import say
from evaluation.datasets.load import RESULT_COLUMN
from evaluation.errors import RunDirectoryError
from evaluation.export.delimited import read_rows
from evaluation.export.json_records import read_records
from evaluation.export.table import THINKING_COLUMN
from evaluation.export.xlsx import read_workbook
from evaluation.finish import final_records
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.log_writer import LogWriter
from evaluation.run_directory.open_run import OpenRun
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem
from evaluation.status import Status
from evaluation.transport.outcome import Failure

ERROR_TEXT = "Failed to obtain answer via API"  # what VLMEvalKit writes in the place of an answer


def import_results(run: OpenRun, file: Path, holds: Callable[[str], bool] = lambda _: True) -> int:
    """Log the answers in `file` (.xlsx, .tsv or .json with columns `index` and `prediction`) of rows that have no
    outcome yet -> their number.

    A text that is an error becomes a failure; an empty one is left out. Rows are told by their index, so one that
    occurs twice is left out too. holds: whether this process answers for an item's id. RunDirectoryError for a file
    that is no such table.
    """
    if not file.exists():
        return 0
    header, rows = _table(file)
    missing = [name for name in ("index", RESULT_COLUMN) if name not in header]
    if missing:
        raise RunDirectoryError(f"{file} has no column {missing[0]!r}, so it holds no earlier answers; move it away")
    known = final_records(run, read_logs(run.layout.log)).by_key
    counts = Counter(item.columns.get("index", "") for item in run.items)
    counts.update(Counter(row[header.index("index")] for row in rows))
    by_index = {row[header.index("index")]: dict(zip(header, row, strict=True)) for row in rows}
    records = [
        _record(item, by_index[index], file)
        for item in run.items
        if (index := item.columns.get("index", "")) in by_index and counts[index] == 2
        if item.key not in known and holds(item.item_id) and by_index[index][RESULT_COLUMN].strip()
    ]
    if records:
        with LogWriter(run.layout.log) as log:
            for record in records:
                log.append(record)
        failed = sum(not record.status.is_answered for record in records)
        say(f"{file}: {len(records)} earlier answers taken over, {failed} of them error texts that count as failed")
    return len(records)


def _table(file: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows, a short row filled up with empty cells. RunDirectoryError for a row that is longer."""
    header, *rows = _read(file) or [[]]
    for number, row in enumerate(rows, start=1):
        if len(row) > len(header):
            raise RunDirectoryError(
                f"{file}: row {number} has {len(row)} cells where the header has {len(header)}, so it holds no earlier "
                "answers; move it away"
            )
        row.extend([""] * (len(header) - len(row)))
    return header, rows


def _read(file: Path) -> list[list[str]]:
    match file.suffix:
        case ".xlsx":
            return list(read_workbook(file))
        case ".json":
            header, rows = read_records(file)
            return [header, *rows]
    return list(read_rows(file))


def _record(item: RunItem, row: dict[str, str], file: Path) -> Record:
    prediction = row[RESULT_COLUMN]
    failure = None
    if ERROR_TEXT in prediction:
        failure = Failure(status=Status.SERVER_5XX, message=f"an earlier result says: {prediction[:300]}")
    now = round(time(), 6)
    return Record(
        key=item.key,
        item_id=item.item_id,
        row=item.row,
        status=failure.status if failure else Status.OK,
        attempt=0,
        text=None if failure else prediction,
        answer=None if failure else prediction.strip(),
        error=error_of(failure) if failure else None,
        started_at=now,
        finished_at=now,
        reasoning=row.get(THINKING_COLUMN) or None,
        thinking="server" if row.get(THINKING_COLUMN) else None,
        index=item.columns.get("index"),
        imported_from=str(file),
    )

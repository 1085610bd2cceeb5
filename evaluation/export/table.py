"""The result table that every format writes: the data's columns without the image, in its order, and `prediction`.

A row without an answer has an empty prediction: no error text ever stands in the place of an answer. `thinking` follows
where any answer has some, as VLMEvalKit has it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path

from evaluation.datasets.load import RESULT_COLUMN
from evaluation.errors import RunDirectoryError
from evaluation.run_directory.manifest import Manifest
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem

THINKING_COLUMN = "thinking"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,14}")  # up to 15 digits: what a spreadsheet's number holds exactly
_NOT_IN_NAMES = re.compile(r"[^\w.@+=-]+")


@dataclass(frozen=True)
class ResultTable:
    """A column that only some rows have is empty in the others. rows: made one by one, as often as they are gone
    through."""

    header: list[str]
    rows: Collection[list[str]]

    @cached_property
    def integer_columns(self) -> set[int]:
        """Columns to be numbers where a format knows them: `index`, when every one of its values is a whole number."""
        if "index" not in self.header:
            return set()
        place = self.header.index("index")
        return {place} if self.rows and all(_INTEGER.fullmatch(row[place]) for row in self.rows) else set()


@dataclass(frozen=True)
class _Rows(Collection[list[str]]):
    items: Sequence[RunItem]
    records: Mapping[str, Record]
    names: Sequence[str]
    has_thinking: bool

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, row: object) -> bool:
        return any(row == own for own in self)

    def __iter__(self) -> Iterator[list[str]]:
        for item in self.items:
            record = self.records.get(item.key)
            row = [item.columns.get(name, "") for name in self.names]
            row.append(record.answer or "" if record else "")
            if self.has_thinking:
                row.append(record.reasoning or "" if record else "")
            yield row


def result_table(items: Sequence[RunItem], records: Mapping[str, Record]) -> ResultTable:
    """The table of a run."""
    names = list(dict.fromkeys(name for item in items for name in item.columns))
    has_thinking = THINKING_COLUMN not in names and any(
        (record := records.get(item.key)) and record.reasoning for item in items
    )
    header = [*names, RESULT_COLUMN, *([THINKING_COLUMN] if has_thinking else [])]
    return ResultTable(header, _Rows(items, records, names, has_thinking))


def check_read_back(path: Path, table: ResultTable, found: Iterable[list[str]]) -> None:
    """RunDirectoryError unless the lines that were read from a file, its header first, are those of the table."""
    for number, (expected, read) in enumerate(zip_longest(chain([table.header], table.rows), found)):
        if expected != read:
            raise RunDirectoryError(
                f"{path}: row {number} does not come back from this format as it was; the log has everything"
            )


def file_stem(manifest: Manifest) -> str:
    """`{model}_{dataset}`, VLMEvalKit's name of a result file."""
    return f"{in_file_name(str(manifest.model.get('name')))}_{dataset_name(manifest)}"


def dataset_name(manifest: Manifest) -> str:
    """The data's name, as a part of a file name."""
    return in_file_name(str(manifest.dataset.get("name") or manifest.dataset["path"].rsplit("/", 1)[-1]))


def in_file_name(text: str) -> str:
    """`text` with anything that a file name may not hold as an underscore."""
    return _NOT_IN_NAMES.sub("_", text).strip("._") or "unnamed"

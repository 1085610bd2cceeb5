"""Reading logs: every whole line counts, every damaged one is reported, none stops the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evaluation.run_directory.line import decode_line, salvage
from evaluation.run_directory.record import Record


@dataclass(frozen=True)
class LogDamage:
    """A line that does not count. kind: "torn" for a file's unfinished last line, else "corrupt"."""

    file: str
    line: int
    kind: Literal["torn", "corrupt"]

    def __str__(self) -> str:
        reason = {"torn": "unfinished last line", "corrupt": "damaged line"}[self.kind]
        return f"{self.file}, line {self.line}: {reason}, left out"


@dataclass(frozen=True)
class LogContents:
    """All records of a run in file order, and the damage found."""

    records: list[Record]
    damage: list[LogDamage]


def read_logs(folder: Path) -> LogContents:
    """Read every log file of a run; a folder that is not there has none."""
    contents = LogContents([], [])
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            one = read_lines(file, path.name)
        contents.records.extend(one.records)
        contents.damage.extend(one.damage)
    return contents


def read_lines(lines: Iterable[bytes], name: str) -> LogContents:
    """Records of one log file given as its lines, each with its newline."""
    contents = LogContents([], [])
    for number, line in enumerate(lines, start=1):
        whole = _record(decode_line(line.removesuffix(b"\n")))
        if whole:
            contents.records.append(whole)
            continue
        contents.records.extend(_records(salvage(line)))
        contents.damage.append(LogDamage(name, number, "corrupt" if line.endswith(b"\n") else "torn"))
    return contents


def _records(values: Iterable[dict[str, Any]]) -> Iterator[Record]:
    return (record for value in values if (record := _record(value)))


def _record(values: dict[str, Any] | None) -> Record | None:
    """None too for a line that is intact but not a record of ours: a later version's, or a stranger's."""
    try:
        return Record.from_dict(values) if values else None
    except (KeyError, TypeError, ValueError):
        return None

"""Choosing rows by id, by status or by a column's value (`--ids`, `--where`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluation.errors import SetupError
from evaluation.options import RowChoice
from evaluation.plan import Question
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem
from evaluation.status import Status

STATUS = "status"
# What --where status=... takes beside the statuses themselves.
_STATUS_GROUPS = ("answered", "failed", "missing")


def check_rows(choice: RowChoice, items: Sequence[RunItem]) -> None:
    """SetupError for an id, a column or a status that does not exist: it would silently choose nothing."""
    known = {item.item_id for item in items}
    if unknown := [item_id for item_id in choice.ids or () if item_id not in known]:
        raise SetupError(f"--ids: no row has the id {unknown[0]!r}")
    columns = {name for item in items for name in item.columns}
    for name, value in choice.where:
        if name == STATUS and value not in (*_STATUS_GROUPS, *Status):
            raise SetupError(
                f"--where status={value}: the statuses are {', '.join((*_STATUS_GROUPS, *(s.value for s in Status)))}"
            )
        if name != STATUS and name not in columns:
            raise SetupError(f"--where {name}={value}: the data have no column {name!r}")


def choose_rows(questions: Sequence[Question], records: Mapping[str, Record], choice: RowChoice) -> list[Question]:
    """The questions of the rows that were chosen, in their order."""
    ids = None if choice.ids is None else set(choice.ids)
    return [
        question
        for question in questions
        if (ids is None or question.item.item_id in ids)
        and all(_holds(question.item, records.get(question.item.key), *pair) for pair in choice.where)
    ]


def _holds(item: RunItem, record: Record | None, name: str, value: str) -> bool:
    if name != STATUS:
        return item.columns.get(name) == value
    match value:
        case "missing":
            return record is None
        case "answered":
            return record is not None and record.status.is_answered
        case "failed":
            return record is not None and not record.status.is_answered
    return record is not None and record.status == value

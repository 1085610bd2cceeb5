"""Odd cells come back identical from the exported table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.datasets.tsv import read_table
from evaluation.export.tsv import encode_table, export_tsv
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem
from evaluation.status import Status

ODD = [
    "NA",
    "null",
    "nan",
    "007",
    "1e5",
    "=1+1",
    "https://example.org/" + "x" * 3000,
    "y" * 40_000,
    "z" * 200_000,
    "\x00\x01\x1f\x7f",
    "emoji \U0001f600 \U0001f469\u200d\U0001f680",
    'a "quoted" word',
    '"',
    "tab\there",
    "line\nends\r\nof\rall kinds",
    "\u2028\u2029\x85\x0b\x0c",
    "\ufeff",
    "  blanks  ",
    "",
]


def make_record(key: str, answer: str | None, status: Status = Status.OK) -> Record:
    return Record(key=key, item_id=key, row=1, status=status, attempt=1, text=answer, answer=answer)


def read_as_csv(path: Path) -> list[list[str]]:
    csv.field_size_limit(10**6)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t"))


def test_odd_cells_survive_as_data_and_as_prediction(tmp_path):
    items = [
        RunItem(key=str(n), item_id=str(n), row=n, columns={"index": cell, "question": "q", "hint": cell})
        for n, cell in enumerate(ODD)
    ]
    records = {str(n): make_record(str(n), cell) for n, cell in enumerate(ODD)}

    export_tsv(tmp_path / "results.tsv", items, records)

    header, *rows = read_as_csv(tmp_path / "results.tsv")
    assert header == ["index", "question", "hint", "prediction"]
    assert rows == [[cell, "q", cell, cell] for cell in ODD]


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1, max_size=4))
def test_any_text_survives(rows):
    header = ["index", "question"]
    assert read_table(encode_table(header, rows), "t") == (header, rows)


def test_bytes_that_are_no_text_come_back_as_they_were():
    data = b"index\tquestion\n1\t\xff\xfe\n"
    assert encode_table(*read_table(data, "t")) == data


@pytest.mark.parametrize("record", [None, make_record("a", None, Status.TIMEOUT)])
def test_row_without_an_answer_has_an_empty_prediction(tmp_path, record):
    item = RunItem(key="a", item_id="a", row=1, columns={"index": "1", "question": "q"})
    export_tsv(tmp_path / "r.tsv", [item], {"a": record} if record else {})
    assert read_as_csv(tmp_path / "r.tsv")[1] == ["1", "q", ""]


def test_columns_that_only_some_rows_have(tmp_path):
    items = [
        RunItem(key="a", item_id="a", row=1, columns={"index": "1", "A": "x"}),
        RunItem(key="b", item_id="b", row=2, columns={"index": "2", "B": "y"}),
    ]
    export_tsv(tmp_path / "r.tsv", items, {})
    assert read_as_csv(tmp_path / "r.tsv") == [
        ["index", "A", "B", "prediction"], ["1", "x", "", ""], ["2", "", "y", ""]
    ]  # fmt: skip

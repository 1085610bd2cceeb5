"""Odd cells come back identical from the exported table."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.datasets.tsv import read_table
from evaluation.export.delimited import encode_table, export_csv, export_tsv
from evaluation.export.json_records import export_json
from evaluation.export.table import ResultTable, result_table
from evaluation.export.xlsx import export_xlsx
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


def read_as_csv(path: Path, delimiter: str = "\t") -> list[list[str]]:
    csv.field_size_limit(10**6)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


def test_odd_cells_survive_as_data_and_as_prediction(tmp_path):
    items = [
        RunItem(key=str(n), item_id=str(n), row=n, columns={"index": cell, "question": "q", "hint": cell})
        for n, cell in enumerate(ODD)
    ]
    records = {str(n): make_record(str(n), cell) for n, cell in enumerate(ODD)}

    export_tsv(tmp_path / "results.tsv", result_table(items, records))
    export_csv(tmp_path / "results.csv", result_table(items, records))

    for header, *rows in (read_as_csv(tmp_path / "results.tsv"), read_as_csv(tmp_path / "results.csv", ",")):
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
    export_tsv(tmp_path / "r.tsv", result_table([item], {"a": record} if record else {}))
    assert read_as_csv(tmp_path / "r.tsv")[1] == ["1", "q", ""]


def test_columns_that_only_some_rows_have(tmp_path):
    items = [
        RunItem(key="a", item_id="a", row=1, columns={"index": "1", "A": "x"}),
        RunItem(key="b", item_id="b", row=2, columns={"index": "2", "B": "y"}),
    ]
    export_tsv(tmp_path / "r.tsv", result_table(items, {}))
    assert read_as_csv(tmp_path / "r.tsv") == [
        ["index", "A", "B", "prediction"], ["1", "x", "", ""], ["2", "", "y", ""]
    ]  # fmt: skip


def test_json_and_workbook_hold_the_same(tmp_path):
    """Read by other people's readers: the json module, and openpyxl with what it does to `_xHHHH_` undone."""
    short = [cell for cell in [*ODD, "_x0041_", "_x000D_ literal", "\ufffe", "x" * 32_767] if len(cell) <= 32_767]
    table = ResultTable(["index", "prediction"], [[str(n), cell] for n, cell in enumerate(short)])

    export_json(tmp_path / "r.json", table)
    export_xlsx(tmp_path / "r.xlsx", table)

    records = json.loads((tmp_path / "r.json").read_text())
    assert records == [{"index": n, "prediction": cell} for n, cell in enumerate(short)]
    sheet = openpyxl.load_workbook(tmp_path / "r.xlsx").active
    cells = [(row[0].value, row[1]) for row in sheet.iter_rows(min_row=2)]
    assert [number for number, _ in cells] == list(range(len(short))), "an index of whole numbers is a number"
    assert [as_excel_shows(cell.value) for _, cell in cells] == short
    assert {cell.data_type for _, cell in cells if cell.value} == {"s"}, "no formula, no number"
    assert not any(cell.hyperlink for _, cell in cells)


def as_excel_shows(value):
    return "" if value is None else re.sub("_x([0-9A-F]{4})_", lambda match: chr(int(match[1], 16)), value)


@pytest.mark.parametrize(
    ("index", "is_number"),
    [(["1", "2"], True), (["1", "007"], False), (["1", "a"], False), (["-3", "0"], True), (["9" * 16, "1"], False)],
)
def test_index_is_a_number_only_where_all_are(index, is_number):
    table = ResultTable(["index", "x"], [[value, "1"] for value in index])
    assert table.integer_columns == ({0} if is_number else set())


@pytest.mark.parametrize(
    ("cell", "reason"), [("x" * 32_768, "32768 characters"), ("\U0001f600" * 16_384, "32768"), ("\udcff", "not valid")]
)
def test_what_no_workbook_holds_is_said(tmp_path, cell, reason):
    with pytest.raises(ValueError, match=reason):
        export_xlsx(tmp_path / "r.xlsx", ResultTable(["index"], [[cell]]))
    assert not list(tmp_path.iterdir())


def test_thinking_column_where_there_is_thinking():
    items = [RunItem(key=key, item_id=key, row=1, columns={"index": key}) for key in "ab"]
    records = {"a": replace(make_record("a", "x"), reasoning="because"), "b": make_record("b", "y")}
    table = result_table(items, records)
    assert table == ResultTable(["index", "prediction", "thinking"], [["a", "x", "because"], ["b", "y", ""]])

"""Odd cells come back identical from the exported table."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import openpyxl
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.datasets.tsv import read_table
from evaluation.errors import RunDirectoryError
from evaluation.export.delimited import export_csv, export_tsv, write_rows
from evaluation.export.formats import ExportFormat, export_table
from evaluation.export.json_records import export_json
from evaluation.export.lmms_eval import export_lmms_eval
from evaluation.export.parquet import export_parquet
from evaluation.export.table import ResultTable, check_read_back, result_table
from evaluation.export.xlsx import export_xlsx
from evaluation.run_directory.manifest import Manifest
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
    file = io.StringIO(newline="")
    write_rows(file, [["index", "question"], *rows])
    assert read_table(file.getvalue().encode("utf-8", "surrogateescape"), "t") == (["index", "question"], rows)


def test_bytes_that_are_no_text_come_back_as_they_were(tmp_path):
    data = b"index\tquestion\n1\t\xff\xfe\n"
    header, rows = read_table(data, "t")
    export_tsv(tmp_path / "r.tsv", ResultTable(header, rows))
    assert (tmp_path / "r.tsv").read_bytes() == data


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


def test_json_workbook_and_parquet_hold_the_same(tmp_path):
    """Read by other people's readers: the json module, pyarrow, and openpyxl with what it does to `_xHHHH_` undone."""
    short = [cell for cell in [*ODD, "_x0041_", "_x000D_ literal", "\ufffe", "x" * 32_767] if len(cell) <= 32_767]
    table = ResultTable(["index", "prediction"], [[str(n), cell] for n, cell in enumerate(short)])

    export_json(tmp_path / "r.json", table)
    export_xlsx(tmp_path / "r.xlsx", table)
    export_parquet(tmp_path / "r.parquet", table)

    assert pyarrow.parquet.read_table(tmp_path / "r.parquet").to_pydict() == {
        "index": list(range(len(short))),
        "prediction": short,
    }
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
    assert table.header == ["index", "prediction", "thinking"]
    assert list(table.rows) == [["a", "x", "because"], ["b", "y", ""]]


@pytest.mark.parametrize("name", [one for one in ExportFormat if one is not ExportFormat.LMMS_EVAL])
def test_every_format_holds_every_cell_or_says_where_it_went(tmp_path, name, capsys):
    table = ResultTable(["index", "prediction"], [[str(number), cell] for number, cell in enumerate(ODD)])

    path = export_table(tmp_path / f"r.{name.value}", name, table)

    assert list(tmp_path.iterdir()) == [path], "nothing temporary is left"
    if name is ExportFormat.XLSX:
        assert path.suffix == ".tsv"
        assert "a cell of 'prediction' has 40000 characters" in capsys.readouterr().err
    if path.suffix in (".tsv", ".csv"):
        rows = read_as_csv(path, "\t" if path.suffix == ".tsv" else ",")
        assert rows == [table.header, *table.rows]


def test_no_rows_at_all(tmp_path):
    for name in (ExportFormat.TSV, ExportFormat.JSON, ExportFormat.XLSX, ExportFormat.PARQUET):
        export_table(tmp_path / f"r.{name.value}", name, ResultTable(["index", "prediction"], []))
    assert json.loads((tmp_path / "r.json").read_text()) == []


def test_a_file_that_reads_back_otherwise_never_takes_its_name(tmp_path):
    table = ResultTable(["index"], [["1"], ["2"]])
    for read in ([["index"], ["1"]], [["index"], ["1"], ["2"], ["3"]], [["index"], ["1"], ["two"]]):
        with pytest.raises(RunDirectoryError, match=r"row [23] does not come back"):
            check_read_back(tmp_path / "r", table, read)


def test_rows_are_made_one_by_one(tmp_path):
    """A table larger than what is kept of it: no export asks for all rows at once."""

    class Rows:
        def __len__(self):
            return 5000

        def __iter__(self):
            for number in range(5000):
                yield [str(number), "x" * 10]

    for name in (ExportFormat.TSV, ExportFormat.CSV, ExportFormat.JSON, ExportFormat.PARQUET, ExportFormat.XLSX):
        export_table(tmp_path / f"r.{name.value}", name, ResultTable(["index", "prediction"], Rows()))
    assert len(json.loads((tmp_path / "r.json").read_text())) == 5000


def test_samples_of_lmms_eval_hold_every_cell(tmp_path):
    items = [
        RunItem(key=str(n), item_id=str(n), row=n, columns={"index": str(n), "question": cell}, references=(cell,))
        for n, cell in enumerate(ODD)
    ]
    records = {str(n): make_record(str(n), cell) for n, cell in enumerate(ODD)}
    manifest = Manifest(
        dataset={"name": "odd", "path": "odd.tsv", "sha256": ""},
        prompt={}, parameters={}, model={"name": "=1+1"}, server={}, rows={}, created_at=0.0,
    )  # fmt: skip

    results, samples = export_lmms_eval(tmp_path, manifest, items, records, {})

    lines = [json.loads(line) for line in samples.read_bytes().splitlines()]
    assert [line["doc_id"] for line in lines] == list(range(len(ODD)))
    assert [line["input"] for line in lines] == ODD
    assert [line["target"] for line in lines] == ODD
    assert [line["filtered_resps"] for line in lines] == [[cell] for cell in ODD]
    assert json.loads(results.read_text())["model_name"] == "=1+1"

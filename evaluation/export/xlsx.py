"""An Excel workbook in which every cell is the text it was: no formula, no link, nothing cut (needs openpyxl).

Characters that XML cannot hold are written as `_xHHHH_` (ECMA-376, part 1, 22.9.2.19), which Excel shows as the
character; a literal text of that form has its underscore escaped.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.errors import RunDirectoryError, SetupError
from evaluation.export.table import ResultTable, check_read_back
from evaluation.run_directory.atomic import replacing

MAX_CELL_LENGTH = 32_767  # Excel's limit, in UTF-16 code units
MAX_ROWS = 1_048_576
# Control characters; the carriage return, which XML readers turn into a line feed; and what is no XML character at all.
_ESCAPED = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")


def export_xlsx(path: Path, table: ResultTable) -> None:
    """Write the table row by row, and read it back before it takes its name. ValueError says why it does not fit into a
    workbook, RunDirectoryError that a cell changed."""
    _check_fits(table)
    with replacing(path) as temporary:
        _write(temporary, table)
        check_read_back(path, table, read_workbook(temporary))


def escape(text: str) -> str:
    """The text as a workbook holds it."""
    return _ESCAPED.sub(lambda match: f"_x{ord(match[0]):04X}_", text)


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def _check_fits(table: ResultTable) -> None:
    if len(table.rows) >= MAX_ROWS:
        raise ValueError(f"{len(table.rows)} rows, more than the {MAX_ROWS - 1} of a workbook")
    for row in table.rows:
        for name, cell in zip(table.header, row, strict=True):
            length = len(escape(cell).encode("utf-16-le", "surrogatepass")) // 2
            if length > MAX_CELL_LENGTH:
                raise ValueError(
                    f"a cell of {name!r} has {length} characters, more than the {MAX_CELL_LENGTH} of a cell"
                )
            if any("\ud800" <= character <= "\udfff" for character in cell):
                raise ValueError(f"a cell of {name!r} is not valid UTF-8")


def _write(path: Path, table: ResultTable) -> None:
    workbook = _openpyxl().Workbook(write_only=True)
    sheet = workbook.create_sheet("Sheet1")
    numbers = table.integer_columns
    sheet.append([_text_cell(sheet, name) for name in table.header])
    for row in table.rows:
        sheet.append([int(cell) if place in numbers else _text_cell(sheet, cell) for place, cell in enumerate(row)])
    workbook.save(path)


def _text_cell(sheet: Any, text: str) -> Any:
    from openpyxl.cell import WriteOnlyCell  # type: ignore[import-untyped, unused-ignore]

    if not text:
        return None
    cell = WriteOnlyCell(sheet, escape(text))
    cell.data_type = "s"  # whatever it looks like: "=1+1" is no formula
    return cell


def read_workbook(path: Path) -> Iterator[list[str]]:
    """Header and rows of a workbook's first sheet, one at a time, as texts. RunDirectoryError when it is none."""
    try:
        with path.open("rb") as file:
            workbook = _openpyxl().load_workbook(file, read_only=True)
            width = 0
            for row in workbook.active.iter_rows(values_only=True):
                width = width or len(row)
                yield ["" if cell is None else unescape(str(cell)) for cell in [*row, *[None] * (width - len(row))]]
            workbook.close()
    except (zipfile.BadZipFile, KeyError) as error:
        raise RunDirectoryError(f"{path}: not an Excel workbook: {error}") from None


def _openpyxl() -> Any:
    try:
        import openpyxl  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise SetupError("exporting a workbook needs openpyxl: pip install openpyxl, or export tsv or json") from None
    return openpyxl

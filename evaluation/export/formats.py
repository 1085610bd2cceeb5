"""Exports by name, and where each goes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from evaluation.console import say
from evaluation.export.delimited import export_csv, export_tsv
from evaluation.export.json_records import export_json
from evaluation.export.lmms_eval import export_lmms_eval
from evaluation.export.parquet import export_parquet
from evaluation.export.table import ResultTable, file_stem
from evaluation.export.xlsx import export_xlsx
from evaluation.run_directory.open_run import OpenRun
from evaluation.run_directory.record import Record
from evaluation.scoring import Scored


class ExportFormat(StrEnum):
    """Values of --export. XLSX, TSV and JSON are VLMEvalKit's result files."""

    XLSX = "xlsx"
    TSV = "tsv"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    LMMS_EVAL = "lmms-eval"


_WRITERS = {
    ExportFormat.XLSX: export_xlsx,
    ExportFormat.TSV: export_tsv,
    ExportFormat.JSON: export_json,
    ExportFormat.CSV: export_csv,
    ExportFormat.PARQUET: export_parquet,
}


def export(
    run: OpenRun,
    name: ExportFormat,
    table: ResultTable,
    records: Mapping[str, Record],
    scored: Mapping[str, Scored],
) -> list[Path]:
    """Write one export below RUN/export -> its files. What a format cannot hold goes to a .tsv, with a notice."""
    folder = run.layout.results.parent
    if name is ExportFormat.LMMS_EVAL:
        return export_lmms_eval(folder / "lmms_eval", run.manifest, run.items, records, scored)
    return [export_table(folder / f"{file_stem(run.manifest)}.{name.value}", name, table)]


def export_table(path: Path, name: ExportFormat, table: ResultTable) -> Path:
    """Write one file and return its path: `path`, or beside it a .tsv where the format cannot hold the table."""
    try:
        _WRITERS[name](path, table)
    except ValueError as error:
        path = path.with_name(f"{path.name.removesuffix(path.suffix)}.tsv")
        say(f"Notice: {error}; the results are in {path} instead")
        export_tsv(path, table)
    return path

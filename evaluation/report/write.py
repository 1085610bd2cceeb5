"""The report's contents: charts, figures, and a table of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from evaluation.report import charts
from evaluation.report.thumbnails import thumbnail_url
from evaluation.run_directory.atomic import write_atomic
from evaluation.run_directory.open_run import OpenRun
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem
from evaluation.scoring import Scored, ScoredRow

MAX_ROWS = 3000
MAX_CELL_LENGTH = 2000
_TEMPLATE = Path(__file__).with_name("report.html.jinja")


@dataclass(frozen=True)
class ReportRow:
    """One row of the table. verdict: "right", "partly", "wrong" or "failed"."""

    item_id: str
    thumbnails: list[str]
    question: str
    gold: str
    prediction: str
    reasoning: str
    status: str
    rules: str
    verdict: str


def write_report(
    run: OpenRun, records: Mapping[str, Record], scored: Mapping[str, Scored], summary: Mapping[str, Any]
) -> None:
    """Write RUN/report.html."""
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_TEMPLATE.read_text())
    rows = _rows(run, records, scored)
    shown = rows if len(rows) <= MAX_ROWS else sorted(rows, key=lambda row: row.verdict == "right")[:MAX_ROWS]
    html = template.render(
        title=run.manifest.dataset.get("name") or run.manifest.dataset["path"],
        model=run.manifest.model,
        summary=summary,
        charts=_charts(run.items, records, summary),
        rows=shown,
        num_rows=len(rows),
    )
    write_atomic(run.layout.report, html.encode())


def _charts(
    items: Sequence[RunItem], records: Mapping[str, Record], summary: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Heading and SVG of each chart that there are data for."""
    drawn = []
    if summary["scores"]:
        drawn.append(("Scores", charts.score_chart(summary["scores"])))
    for scorer, columns in summary["categories"].items():
        for column, categories in columns.items():
            drawn.append((f"{scorer} by {column}", charts.category_chart(categories, scorer)))
    if summary["failed_by_class"]:
        drawn.append(("Failures by class", charts.count_chart(summary["failed_by_class"], "rows")))
    asked = [record for item in items if (record := records.get(item.key)) and record.attempt]
    if asked:
        drawn.append(("Latency", charts.histogram([record.seconds for record in asked], "seconds of the last request")))
    if tokens := [record.usage["completion_tokens"] for record in asked if record.usage]:
        drawn.append(("Answer length", charts.histogram(tokens, "generated tokens")))
    return drawn


def _rows(run: OpenRun, records: Mapping[str, Record], scored: Mapping[str, Scored]) -> list[ReportRow]:
    verdicts: dict[str, list[ScoredRow]] = {}
    for one in scored.values():
        for row in one.rows:
            verdicts.setdefault(row.key, []).append(row)
    return [_row(run, item, records[item.key], verdicts.get(item.key, [])) for item in run.items if item.key in records]


def _row(run: OpenRun, item: RunItem, record: Record, verdicts: Sequence[ScoredRow]) -> ReportRow:
    urls = [thumbnail_url(run.layout.thumbnails, digest) for digest in item.images]
    message = str(record.error["message"]) if record.error else ""
    return ReportRow(
        item_id=item.item_id,
        thumbnails=[url for url in urls if url],
        question=_short(item.columns.get("question", "")),
        gold=_short(", ".join(item.references)),
        prediction=_short(record.answer if record.answer is not None else message),
        reasoning=_short(record.reasoning or ""),
        status=record.status.value,
        rules="; ".join(f"{row.scorer}: {row.score:g} ({row.rule})" for row in verdicts),
        verdict=_verdict(record, verdicts),
    )


def _verdict(record: Record, verdicts: Sequence[ScoredRow]) -> str:
    if not record.status.is_answered:
        return "failed"
    scores = {row.score for row in verdicts}
    if scores <= {1.0}:
        return "right"
    return "wrong" if scores == {0.0} else "partly"


def _short(text: str) -> str:
    return text if len(text) <= MAX_CELL_LENGTH else f"{text[:MAX_CELL_LENGTH]} … ({len(text)} characters in all)"

"""Everything that is made from the log: scores, export, summary, and the lines a person reads at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from evaluation.errors import RunDirectoryError
from evaluation.export.tsv import export_tsv
from evaluation.run_directory.atomic import write_atomic
from evaluation.run_directory.log_reader import LogContents, read_logs
from evaluation.run_directory.open_run import OpenRun
from evaluation.run_directory.record import fold
from evaluation.scorers import Scorer
from evaluation.scoring import ScoredRow, score_rows
from evaluation.summary import summarize


def write_results(run: OpenRun, scorers: Sequence[Scorer]) -> dict[str, Any]:
    """Write scores/, export/ and summary.json from the log alone, and return the summary."""
    contents = read_logs(run.layout.log)
    final = fold(contents.records)
    scored = {scorer.name: score_rows(run.items, final.by_key, scorer) for scorer in scorers}
    summary = summarize(run, contents, final, scored)
    try:
        for name, rows in scored.items():
            write_atomic(run.layout.scores(name), _json_lines(rows))
        export_tsv(run.layout.results, run.items, final.by_key)
        write_atomic(run.layout.summary, json.dumps(summary, indent=1).encode() + b"\n")
    except OSError as error:
        raise RunDirectoryError(f"cannot write the results in {run.layout.root}: {error.strerror}") from None
    return summary


def damage_lines(contents: LogContents) -> list[str]:
    """Warnings on damaged log lines."""
    return [f"log: {damage}" for damage in contents.damage]


def summary_lines(run: OpenRun, summary: dict[str, Any]) -> list[str]:
    """What is printed at the end of a run."""
    lines = [f"Status     {summary['status']}: {_counts(summary)}"]
    for name, score in summary["scores"].items():
        lines.append(
            f"Score      {name} {score['mean']:.4f} ± {score['stderr']:.4f} (n = {score['n']}, failures wrong)"
        )
    rates = (
        f"{summary['requests_per_second']:.1f} requests/s, {summary['output_tokens_per_second']:.1f} output tokens/s"
    )
    return [*lines, f"Speed      {rates}", f"Summary    {run.layout.summary}", f"Results    {run.layout.results}"]


def _counts(summary: dict[str, Any]) -> str:
    text = f"{summary['done']} of {summary['items']} answered, {summary['failed']} failed"
    if classes := summary["failed_by_class"]:
        text += " (" + ", ".join(f"{name}: {count}" for name, count in classes.items()) + ")"
    if summary["remaining"]:
        text += f", {summary['remaining']} not asked yet"
    return text


def _json_lines(rows: Sequence[ScoredRow]) -> bytes:
    return b"".join(json.dumps(row.to_dict(), separators=(",", ":")).encode() + b"\n" for row in rows)

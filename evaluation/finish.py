"""Everything that is made from the log: scores, export, summary, and the lines a person reads at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from evaluation.answers import split_again
from evaluation.errors import RunDirectoryError
from evaluation.export.delimited import export_tsv
from evaluation.export.formats import ExportFormat, export
from evaluation.export.table import result_table
from evaluation.offline.timing import timing_lines
from evaluation.report.write import write_report
from evaluation.run_directory.atomic import only_process, write_atomic
from evaluation.run_directory.log_reader import LogContents, read_logs
from evaluation.run_directory.open_run import OpenRun
from evaluation.run_directory.record import FinalRecords, fold
from evaluation.scorers import Scorer
from evaluation.scoring import ScoredRow, score_run
from evaluation.summary import summarize
from evaluation.thinking import ThinkingSplit


def write_results(
    run: OpenRun, scorers: Sequence[Scorer], exports: Sequence[ExportFormat] = (), *, report: bool = True
) -> dict[str, Any]:
    """Write scores/, export/, report.html and summary.json from the log alone, and return the summary.

    The report is made once every row has its outcome: it takes seconds, and tells what the summary tells until then.
    Of several processes one writes at a time, and reads the log when its turn has come: results never become older.
    RunDirectoryError when a file cannot be written.
    """
    try:
        with only_process(run.layout.results_lock):
            return _write_results(run, scorers, exports, report)
    except OSError as error:
        raise RunDirectoryError(f"cannot write the results in {run.layout.root}: {error.strerror}") from None


def _write_results(
    run: OpenRun, scorers: Sequence[Scorer], exports: Sequence[ExportFormat], report: bool
) -> dict[str, Any]:
    contents = read_logs(run.layout.log)
    final = final_records(run, contents)
    scored = {scorer.name: score_run(run.items, final.by_key, scorer) for scorer in scorers}
    summary = summarize(run, contents, final, scored)
    if (timing := _offline_timing(run)) is not None:
        summary["offline"] = timing
    for name, one in scored.items():
        write_atomic(run.layout.scores(name), _json_lines(one.rows))
    table = result_table(run.items, final.by_key)
    export_tsv(run.layout.results, table)
    write_atomic(run.layout.summary, json.dumps(summary, indent=1).encode() + b"\n")
    for name in dict.fromkeys(exports):
        export(run, name, table, final.by_key, scored)
    if report and not summary["remaining"]:
        write_report(run, final.by_key, scored, summary)
    else:
        run.layout.report.unlink(missing_ok=True)  # an earlier one would not be true any more
    return summary


def final_records(run: OpenRun, contents: LogContents) -> FinalRecords:
    """What counts, out of all lines, its answers taken from the raw texts as the run's manifest says."""
    final = fold(contents.records)
    thinking = ThinkingSplit.from_dict(run.manifest.thinking)
    return FinalRecords(split_again(final.by_key, thinking), final.duplicates)


def _offline_timing(run: OpenRun) -> Any:
    """What the last offline session wrote, None without one."""
    try:
        return json.loads(run.layout.offline.read_bytes())
    except (OSError, ValueError):
        return None


def damage_lines(contents: LogContents) -> list[str]:
    """Warnings on damaged log lines."""
    return [f"log: {damage}" for damage in contents.damage]


def summary_lines(run: OpenRun, summary: dict[str, Any]) -> list[str]:
    """What is printed at the end of a run."""
    lines = [f"Status     {summary['status']}: {_counts(summary)}"]
    for name, score in summary["scores"].items():
        lines.append(
            f"Score      {name} {score['mean']:.4f} ± {score['stderr']:.4f} (n = {score['n']}, failures wrong"
            f"{_without_failures(score)})"
        )
    rates = (
        f"{summary['requests_per_second']:.1f} requests/s, {summary['output_tokens_per_second']:.1f} output tokens/s"
    )
    if "offline" in summary:
        lines += timing_lines(summary["offline"])
    lines += [f"Speed      {rates}", f"Summary    {run.layout.summary}", f"Results    {run.layout.results}"]
    return [*lines, f"Report     {run.layout.report}"] if run.layout.report.exists() else lines


def _without_failures(score: dict[str, Any]) -> str:
    if score["n_answered"] == score["n"] or score["mean_answered"] is None:
        return ""
    return f"; {score['mean_answered']:.4f} of the {score['n_answered']} answered"


def _counts(summary: dict[str, Any]) -> str:
    text = f"{summary['done']} of {summary['items']} answered, {summary['failed']} failed"
    if classes := summary["failed_by_class"]:
        text += " (" + ", ".join(f"{name}: {count}" for name, count in classes.items()) + ")"
    if summary["remaining"]:
        text += f", {summary['remaining']} not asked yet"
    return text


def _json_lines(rows: Sequence[ScoredRow]) -> bytes:
    return b"".join(json.dumps(row.to_dict(), separators=(",", ":")).encode() + b"\n" for row in rows)

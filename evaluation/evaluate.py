"""One evaluation from data to results, and the recomputation of results from a run directory."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evaluation.asking import AskingEnd, ask_over_http
from evaluation.console import say, warn
from evaluation.errors import ExitStatus, SetupError
from evaluation.export.formats import ExportFormat
from evaluation.finish import damage_lines, final_records, summary_lines, write_results
from evaluation.options import EvaluateOptions, FailureLimit
from evaluation.preflight import ServedModel, check_likelihoods, inspect_server
from evaluation.preparation import Material, Prepared, prepare, read_material
from evaluation.report.thumbnails import write_thumbnails
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.open_run import OpenRun, open_existing
from evaluation.scorers import ScorerName, choose_scorers


def evaluate(options: EvaluateOptions) -> ExitStatus:
    """Ask what has no answer yet, then write the results. Raises EvaluationError."""
    if options.offline is not None:
        from evaluation.offline.session import evaluate_offline  # imports torch and the server

        return evaluate_offline(options, options.offline)
    RunLayout(options.output).check_usable(new_run=options.new_run)
    return evaluate_over_http(options, read_material(options))


def evaluate_over_http(
    options: EvaluateOptions, material: Material, before_asking: Callable[[Prepared], None] = lambda _: None
) -> ExitStatus:
    """The same with data that were read. before_asking: is given the run. Raises EvaluationError."""
    if options.new_run and options.shard.world_size > 1:
        raise SetupError("with several ranks --new-run would set the others' answers aside; choose another --output")
    model = asyncio.run(inspect_server(options.server, options.server_wait, options.api_key))
    say(f"Server     {options.server} serves {model}")
    _warn_of_length(options, model)
    if options.request_type.is_likelihood:
        asyncio.run(check_likelihoods(options.server, options.api_key))
    prepared = prepare(options, material, model)
    before_asking(prepared)
    end = ask_over_http(options, prepared.run, prepared.questions, model.name)
    if options.wait_for_ranks and end == AskingEnd():
        _wait_for_ranks(prepared.run, options.wait_for_ranks)
    return conclude(options, prepared, end)


def _warn_of_length(options: EvaluateOptions, model: ServedModel) -> None:
    longest, asked = model.max_model_len, options.parameters.max_new_tokens
    if longest is not None and asked >= longest and not options.request_type.is_likelihood:
        warn([f"--max-new-tokens {asked} is more than the model's {longest} tokens of prompt and answer together"])


def conclude(options: EvaluateOptions, prepared: Prepared, end: AskingEnd) -> ExitStatus:
    """Write the results and print what came out. Raises what ended the asking early."""
    run = prepared.run
    try:
        if options.report:
            write_thumbnails(run.layout.thumbnails, prepared.images)
        summary = write_results(run, prepared.scorers, options.exports, report=options.report)
    except SetupError as error:
        if end.aborted is None:
            raise
        say(f"Warning: {error}")  # a full disk, for one, ends the asking first: that is what the shell is told
        raise end.aborted from None
    _print_summary(run, summary)
    if end.aborted:
        raise end.aborted
    return _exit_status_of_session(options, end, summary, run)


def merge(
    output: Path,
    scorer: ScorerName,
    fail_on_error: FailureLimit,
    exports: Sequence[ExportFormat] = (),
    *,
    report: bool = True,
) -> ExitStatus:
    """Write the results of a run again, from its directory alone. Raises EvaluationError.

    COMPLETE when every row has its outcome, also one that could pass if asked again: this proves coverage.
    """
    run = open_existing(RunLayout(output))
    warn(damage_lines(read_logs(run.layout.log)))
    scorers = choose_scorers(scorer, run.items, run.manifest.request_type)
    summary = write_results(run, scorers, exports, report=report)
    _print_summary(run, summary)
    status = exit_status(summary, fail_on_error)
    return ExitStatus.COMPLETE if status is ExitStatus.INCOMPLETE and not summary["remaining"] else status


def exit_status(summary: dict[str, Any], fail_on_error: FailureLimit) -> ExitStatus:
    """What the shell is told about a run with this summary."""
    if fail_on_error.is_passed(summary["failed"], summary["items"]):
        return ExitStatus.TOO_MANY_FAILED
    return ExitStatus.COMPLETE if summary["status"] == "complete" else ExitStatus.INCOMPLETE


def _wait_for_ranks(run: OpenRun, seconds: float) -> None:
    """Until every row has its outcome, or no new one came for so long; nobody is waited for without an end."""
    wanted = {item.key for item in run.items}
    deadline, fewest = time.monotonic() + seconds, len(wanted)
    while missing := wanted - {record.key for record in read_logs(run.layout.log).records}:
        if len(missing) < fewest:
            deadline, fewest = time.monotonic() + seconds, len(missing)
        if (left := deadline - time.monotonic()) <= 0:
            say(f"Warning: {len(missing)} rows of other ranks have no outcome, and none came for {seconds:g} seconds")
            return
        time.sleep(min(1.0, left))


def _exit_status_of_session(
    options: EvaluateOptions, end: AskingEnd, summary: dict[str, Any], run: OpenRun
) -> ExitStatus:
    if end.interrupted and summary["status"] != "complete":
        return ExitStatus.INTERRUPTED if end.interrupted is signal.SIGINT else ExitStatus.INCOMPLETE
    status = exit_status(summary, options.fail_on_error)
    if status is ExitStatus.INCOMPLETE and options.shard.world_size > 1 and not options.wait_for_ranks:
        return _exit_status_of_rank(options, run)
    return status


def _exit_status_of_rank(options: EvaluateOptions, run: OpenRun) -> ExitStatus:
    """A rank answers for its own part alone."""
    final = final_records(run, read_logs(run.layout.log)).by_key
    mine = [item for item in run.items if options.shard.holds(item.item_id)]
    done = all(item.key in final and not final[item.key].is_retryable for item in mine)
    return ExitStatus.COMPLETE if done else ExitStatus.INCOMPLETE


def _print_summary(run: OpenRun, summary: dict[str, Any]) -> None:
    for line in summary_lines(run, summary):
        print(line)

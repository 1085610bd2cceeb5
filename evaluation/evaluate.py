"""One evaluation from data to results, and the recomputation of results from a run directory."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.asking import AskingEnd, ask_remaining
from evaluation.console import say, warn
from evaluation.datasets import Dataset, Item, load_dataset, with_sound_images
from evaluation.errors import ExitStatus, PreflightError
from evaluation.export.formats import ExportFormat
from evaluation.finish import damage_lines, final_records, summary_lines, write_results
from evaluation.options import EvaluateOptions, FailureLimit
from evaluation.plan import AskingSettings, Question, plan_questions
from evaluation.preflight import ServedModel, check_likelihoods, inspect_server
from evaluation.prompts import default_text, load_template, template_text
from evaluation.report.thumbnails import write_thumbnails
from evaluation.request_types.dialogue import load_turn_function
from evaluation.rows import check_rows
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.manifest import Manifest
from evaluation.run_directory.open_run import OpenRun, create_or_resume, open_existing, rows_entry
from evaluation.scorers import ScorerName, choose_scorers


def evaluate(options: EvaluateOptions) -> ExitStatus:
    """Ask what has no answer yet, then write the results. Raises EvaluationError."""
    layout = RunLayout(options.output)
    layout.check_usable()
    dataset = load_dataset(options.data)
    template = load_template(options.prompt_template) if options.prompt_template else None
    settings = _settings(options, template)
    model = asyncio.run(inspect_server(options.server, options.server_wait, options.api_key))
    say(f"Server     {options.server} serves {model}")
    if options.request_type.is_likelihood:
        asyncio.run(check_likelihoods(options.server, options.api_key))

    sound = _sound_items(options, dataset, model)
    questions = plan_questions(sound, settings, model.identity)
    items = [question.item for question in questions]
    scorers = choose_scorers(options.scorer, items, options.request_type)
    check_rows(options.rows, items)
    warn(dataset.warnings)
    warn([f"row {item.row}: {item.error}; it is not asked and counts as wrong" for item in items if item.error])
    if options.new_run and (moved := layout.supersede()):
        say(f"Earlier answers moved to {moved}")
    run = create_or_resume(layout, _manifest(options, dataset, template, settings, model, questions), items)

    end = ask_remaining(options, run, questions, model)
    if options.wait_for_ranks and end == AskingEnd():
        _wait_for_ranks(run, options.wait_for_ranks)
    if options.report:
        write_thumbnails(layout.thumbnails, (image for item in sound for image in item.all_images()))
    summary = write_results(run, scorers, options.exports, report=options.report)
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
    """Write the results of a run again, from its directory alone. Raises EvaluationError."""
    run = open_existing(RunLayout(output))
    warn(damage_lines(read_logs(run.layout.log)))
    scorers = choose_scorers(scorer, run.items, run.manifest.request_type)
    summary = write_results(run, scorers, exports, report=report)
    _print_summary(run, summary)
    return exit_status(summary, fail_on_error)


def exit_status(summary: dict[str, Any], fail_on_error: FailureLimit) -> ExitStatus:
    """What the shell is told about a run with this summary."""
    if fail_on_error.is_passed(summary["failed"], summary["items"]):
        return ExitStatus.TOO_MANY_FAILED
    return ExitStatus.COMPLETE if summary["status"] == "complete" else ExitStatus.INCOMPLETE


def _settings(options: EvaluateOptions, template: str | None) -> AskingSettings:
    return AskingSettings(
        request_type=options.request_type,
        parameters=options.parameters,
        renderer=default_text if template is None else template_text(template, str(options.prompt_template)),
        continuation=options.continuation,
        next_turn=load_turn_function(options.next_turn) if options.next_turn else None,
    )


def _sound_items(options: EvaluateOptions, dataset: Dataset, model: ServedModel) -> list[Item]:
    """The selected rows, their images opened. PreflightError when the model takes none."""
    items = with_sound_images(dataset.items[: options.limit])
    with_images = [item for item in items if item.all_images()]
    if with_images and not model.takes_images:
        raise PreflightError(
            f"{len(with_images)} rows of {dataset.name} have images (the first is row {with_images[0].row}), "
            f"but {options.server} serves a {model.kind}, which reads text only"
        )
    return items


def _manifest(
    options: EvaluateOptions,
    dataset: Dataset,
    template: str | None,
    settings: AskingSettings,
    model: ServedModel,
    questions: Sequence[Question],
) -> Manifest:
    return Manifest(
        dataset={"name": dataset.short_name, "path": dataset.location, "sha256": dataset.sha256},
        prompt={"template": template, "sha256": hashlib.sha256((template or "").encode()).hexdigest()},
        parameters=settings.to_dict(),
        model=model.to_dict(),
        server=model.info,
        rows=rows_entry([question.item for question in questions]),
        thinking=options.thinking.to_dict(),
        created_at=time.time(),
    )


def _wait_for_ranks(run: OpenRun, seconds: float) -> None:
    """Until every row has its outcome, or the time is over; whoever is missing is not waited for any longer."""
    wanted = {item.key for item in run.items}
    deadline = time.monotonic() + seconds
    while missing := wanted - {record.key for record in read_logs(run.layout.log).records}:
        if (left := deadline - time.monotonic()) <= 0:
            say(f"Warning: {len(missing)} rows of other ranks have no outcome after {seconds:g} seconds")
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

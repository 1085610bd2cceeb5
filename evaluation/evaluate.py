"""One evaluation from data file to results, and the recomputation of results from a run directory."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.datasets import Dataset, load_dataset
from evaluation.errors import ExitStatus, PreflightError, RunAbortedError
from evaluation.finish import damage_lines, summary_lines, write_results
from evaluation.keys import GenerationParameters
from evaluation.plan import Question, plan_questions, remaining_questions
from evaluation.preflight import ServedModel, inspect_server
from evaluation.progress import make_reporter
from evaluation.prompts import Renderer, default_text, load_template, template_text
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.log_writer import LogWriter
from evaluation.run_directory.manifest import Manifest
from evaluation.run_directory.open_run import OpenRun, create_or_resume, open_existing, rows_entry
from evaluation.run_directory.record import fold
from evaluation.runner import run_questions
from evaluation.scorers import ScorerName, choose_scorers
from evaluation.transport.client import Client, open_session
from evaluation.transport.gate import ServerGate
from evaluation.transport.retry import RetryPolicy


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What the command line says. timeout: seconds for one request. server_wait: seconds to wait for a server that
    loads, restarts or puts off. retry_failed: see `plan.remaining_questions`."""

    server: str
    data: Path
    output: Path
    parameters: GenerationParameters
    concurrency: int = 64
    limit: int | None = None
    scorer: ScorerName = ScorerName.AUTO
    prompt_template: Path | None = None
    timeout: float = 600.0
    server_wait: float = 300.0
    max_attempts: int = 4
    retry_failed: bool | None = None
    new_run: bool = False


def evaluate(options: EvaluateOptions) -> ExitStatus:
    """Ask what has no answer yet, then write the results. Raises EvaluationError."""
    layout = RunLayout(options.output)
    layout.check_usable()
    dataset = load_dataset(options.data)
    template = load_template(options.prompt_template) if options.prompt_template else None
    renderer = template_text(template, str(options.prompt_template)) if template is not None else default_text
    model = asyncio.run(inspect_server(options.server, options.server_wait))
    _say(f"Server     {options.server} serves {model}")

    questions = _plan(options, dataset, renderer, model)
    items = [question.item for question in questions]
    scorers = choose_scorers(options.scorer, items)
    _warn(dataset.warnings)
    _warn([f"row {item.row}: {item.error}; it is not asked and counts as wrong" for item in items if item.error])
    if options.new_run and (moved := layout.supersede()):
        _say(f"Earlier answers moved to {moved}")
    run = create_or_resume(layout, _manifest(options, dataset, template, model, questions), items)

    aborted = _ask_remaining(options, run, questions, model)
    summary = write_results(run, scorers)
    for line in summary_lines(run, summary):
        print(line)
    if aborted:
        raise aborted
    return exit_status(summary)


def merge(output: Path, scorer: ScorerName) -> ExitStatus:
    """Write the results of a run again, from its directory alone. Raises EvaluationError."""
    run = open_existing(RunLayout(output))
    _warn(damage_lines(read_logs(run.layout.log)))
    summary = write_results(run, choose_scorers(scorer, run.items))
    for line in summary_lines(run, summary):
        print(line)
    return exit_status(summary)


def exit_status(summary: dict[str, Any]) -> ExitStatus:
    """What the shell is told about a run with this summary."""
    return ExitStatus.COMPLETE if summary["status"] == "complete" else ExitStatus.INCOMPLETE


def _plan(options: EvaluateOptions, dataset: Dataset, renderer: Renderer, model: ServedModel) -> list[Question]:
    selected = dataset.items[: options.limit]
    with_images = [item for item in selected if item.images]
    if with_images and not model.takes_images:
        raise PreflightError(
            f"{len(with_images)} rows of {options.data} have images (the first is row {with_images[0].row}), "
            f"but {options.server} serves a {model.kind}, which reads text only"
        )
    return plan_questions(selected, renderer, model.identity, options.parameters)


def _manifest(
    options: EvaluateOptions,
    dataset: Dataset,
    template: str | None,
    model: ServedModel,
    questions: Sequence[Question],
) -> Manifest:
    return Manifest(
        dataset={"path": str(dataset.path.absolute()), "sha256": dataset.sha256},
        prompt={"template": template, "sha256": hashlib.sha256((template or "").encode()).hexdigest()},
        parameters=options.parameters.to_dict(),
        model=model.to_dict(),
        server=model.info,
        rows=rows_entry([question.item for question in questions]),
        created_at=time.time(),
    )


def _ask_remaining(
    options: EvaluateOptions, run: OpenRun, questions: Sequence[Question], model: ServedModel
) -> RunAbortedError | None:
    """Ask what the log has no answer to; the error that ended it early, if one did."""
    contents = read_logs(run.layout.log)
    _warn(damage_lines(contents))
    records = fold(contents.records).by_key
    remaining = remaining_questions(questions, records, options.retry_failed)
    if kept := len(questions) - len(remaining):
        _say(f"Resuming: {kept} of {len(questions)} questions have their outcome already")
    if not remaining:
        return None
    try:
        # The log is closed after the event loop: a flush may still be running in one of its threads.
        with LogWriter(run.layout.log) as log:
            asyncio.run(_ask(options, remaining, model, log))
    except RunAbortedError as error:
        return error
    return None


async def _ask(options: EvaluateOptions, questions: Sequence[Question], model: ServedModel, log: LogWriter) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    policy = RetryPolicy(max_attempts=options.max_attempts, max_throttled=options.server_wait)
    async with open_session() as session:
        gate = ServerGate(session, options.server, options.server_wait)
        client = Client(
            session,
            options.server,
            gate,
            model=model.name,
            parameters=options.parameters,
            timeout=options.timeout,
            policy=policy,
        )
        try:
            with make_reporter(len(questions)) as reporter:
                await run_questions(
                    questions,
                    client,
                    log,
                    concurrency=options.concurrency,
                    stop=stop,
                    on_record=reporter.show,
                )
        finally:
            gate.close()
    if stop.is_set():
        _say("Interrupted: what was under way is dropped; the same command resumes the run")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _warn(lines: Sequence[str], at_most: int = 20) -> None:
    for line in lines[:at_most]:
        _say(f"Warning: {line}")
    if len(lines) > at_most:
        _say(f"Warning: and {len(lines) - at_most} more of this kind")

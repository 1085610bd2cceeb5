"""Asking what has no answer yet: from the log to the log, over one session with the server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from evaluation.console import say, warn
from evaluation.errors import RunAbortedError
from evaluation.finish import damage_lines, final_records
from evaluation.options import EvaluateOptions
from evaluation.plan import Question, neighbours_together, remaining_questions
from evaluation.preflight import ServedModel
from evaluation.progress import make_reporter
from evaluation.request_types.answer import Answerer
from evaluation.rows import choose_rows
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.log_writer import LogWriter
from evaluation.run_directory.open_run import OpenRun
from evaluation.runner import run_questions
from evaluation.transport.byte_budget import ByteBudget
from evaluation.transport.client import Client, open_session
from evaluation.transport.gate import ServerGate
from evaluation.transport.retry import RetryPolicy


class AskingEnd(NamedTuple):
    """aborted: the error that ended it early. interrupted: the signal that did."""

    aborted: RunAbortedError | None = None
    interrupted: signal.Signals | None = None


def ask_remaining(
    options: EvaluateOptions, run: OpenRun, questions: Sequence[Question], model: ServedModel
) -> AskingEnd:
    """Ask this process's share of what the log has no answer to."""
    contents = read_logs(run.layout.log)
    warn(damage_lines(contents))
    records = final_records(run, contents).by_key
    retry_failed = True if options.rows.is_explicit and options.retry_failed is None else options.retry_failed
    remaining = remaining_questions(choose_rows(questions, records, options.rows), records, retry_failed)
    if kept := sum(question.item.key in records for question in questions):
        say(f"Resuming: {kept} of {len(questions)} questions have their outcome already")
    if options.shard.world_size > 1:
        remaining = [question for question in remaining if options.shard.holds(question.item.item_id)]
        say(f"Rank {options.shard.rank} of {options.shard.world_size} asks {len(remaining)} questions")
    if not remaining:
        return AskingEnd()
    try:
        # The log is closed after the event loop: a flush may still be running in one of its threads.
        with LogWriter(run.layout.log) as log:
            return asyncio.run(_ask(options, neighbours_together(remaining), model, log))
    except RunAbortedError as error:
        return AskingEnd(aborted=error)


async def _ask(
    options: EvaluateOptions, questions: Sequence[Question], model: ServedModel, log: LogWriter
) -> AskingEnd:
    with _stop_on_signals() as stop:
        async with open_session(options.api_key) as session:
            gate = ServerGate(session, options.server, options.server_wait)
            client = Client(
                session,
                options.server,
                gate,
                concurrency=options.concurrency,
                image_bytes=ByteBudget(int(options.max_image_mb * 2**20)),
                timeout=options.timeout,
                policy=RetryPolicy(max_attempts=options.max_attempts, max_throttled=options.server_wait),
            )
            answerer = Answerer(
                sender=client, model=model.name, parameters=options.parameters, thinking=options.thinking
            )
            try:
                with make_reporter(len(questions)) as reporter:
                    await run_questions(
                        questions,
                        answerer,
                        log,
                        concurrency=options.concurrency,
                        stop=stop.event,
                        on_record=reporter.show,
                    )
            finally:
                gate.close()
        if stop.event.is_set():
            say("Interrupted: what was under way is dropped; the same command resumes the run")
        return AskingEnd(interrupted=stop.signal)


class _Stop:
    """Set by a signal, once; the process is not ended, so that the log and the results are written."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.signal: signal.Signals | None = None

    def set(self, number: signal.Signals) -> None:
        self.signal = self.signal or number
        self.event.set()


@contextmanager
def _stop_on_signals() -> Iterator[_Stop]:
    stop = _Stop()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set, number)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

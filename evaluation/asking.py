"""Asking what has no answer yet: from the log to the log, until everything is asked or a signal comes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import uvloop

from evaluation.console import say, warn
from evaluation.errors import RunAbortedError
from evaluation.finish import damage_lines, final_records
from evaluation.options import EvaluateOptions
from evaluation.plan import Question, in_order_of_asking, remaining_questions
from evaluation.progress import make_reporter
from evaluation.request_types.answer import Answerer, Sender
from evaluation.rows import choose_rows
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.log_writer import LogWriter
from evaluation.run_directory.open_run import OpenRun
from evaluation.run_directory.record import Record
from evaluation.runner import run_questions
from evaluation.transport.byte_budget import ByteBudget
from evaluation.transport.client import Client
from evaluation.transport.gate import ServerGate
from evaluation.transport.http_wire import HttpWire, open_session
from evaluation.transport.retry import RetryPolicy
from evaluation.transport.wire import Gate, Wire


class AskingEnd(NamedTuple):
    """aborted: the error that ended it early. interrupted: the signal that did."""

    aborted: RunAbortedError | None = None
    interrupted: signal.Signals | None = None


def questions_left(options: EvaluateOptions, run: OpenRun, questions: Sequence[Question]) -> list[Question]:
    """What the log has no answer to, of the rows that were chosen."""
    contents = read_logs(run.layout.log)
    warn(damage_lines(contents))
    records = final_records(run, contents).by_key
    retry_failed = True if options.rows.is_explicit and options.retry_failed is None else options.retry_failed
    if kept := sum(question.item.key in records for question in questions):
        say(f"Resuming: {kept} of {len(questions)} questions have their outcome already")
    return remaining_questions(choose_rows(questions, records, options.rows), records, retry_failed)


def ask_over_http(options: EvaluateOptions, run: OpenRun, questions: Sequence[Question], model_name: str) -> AskingEnd:
    """Ask this process's share of what is left."""
    remaining = questions_left(options, run, questions)
    if options.shard.world_size > 1:
        remaining = [question for question in remaining if options.shard.holds(question.item.item_id)]
        say(f"Rank {options.shard.rank} of {options.shard.world_size} asks {len(remaining)} questions")
    if not remaining:
        return AskingEnd()

    async def ask(log: LogWriter) -> AskingEnd:
        async with _http_client(options) as client:
            return await ask_all(options, remaining, client, model_name, log)

    try:
        with LogWriter(run.layout.log) as log:
            return uvloop.run(ask(log))
    except RunAbortedError as error:
        return AskingEnd(aborted=error)


async def ask_all(
    options: EvaluateOptions, questions: Sequence[Question], sender: Sender, model_name: str, log: LogWriter
) -> AskingEnd:
    """Ask all of them. Raises RunAbortedError when nothing can be asked any more."""
    answerer = Answerer(sender=sender, model=model_name, parameters=options.parameters, thinking=options.thinking)
    num_shown = sum(not question.is_padding for question in questions)
    with _stop_on_signals() as stop, make_reporter(num_shown) as reporter:
        await run_questions(
            in_order_of_asking(questions, options.concurrency),
            answerer,
            log,
            concurrency=options.concurrency,
            stop=stop.event,
            on_record=_shown_twice(reporter.show) if options.verbose else reporter.show,
        )
    if stop.event.is_set():
        say("Interrupted: what was under way is dropped; the same command resumes the run")
    return AskingEnd(interrupted=stop.signal)


def _shown_twice(show: Callable[[Record], None]) -> Callable[[Record], None]:
    def both(record: Record) -> None:
        show(record)
        message = record.error["message"] if record.error else record.answer
        say(f"{record.item_id}: {record.status.value}: {message}")

    return both


def make_client(options: EvaluateOptions, wire: Wire, gate: Gate) -> Client:
    """A client with this evaluation's limits."""
    return Client(
        wire,
        gate,
        concurrency=options.concurrency,
        image_bytes=ByteBudget(int(options.max_image_mb * 2**20)),
        timeout=options.timeout,
        policy=RetryPolicy(max_attempts=options.max_attempts, max_throttled=options.server_wait),
    )


@asynccontextmanager
async def _http_client(options: EvaluateOptions) -> AsyncIterator[Client]:
    async with open_session(options.api_key) as session:
        gate = ServerGate(session, options.server, options.server_wait)
        try:
            yield make_client(options, HttpWire(session, options.server), gate)
        finally:
            gate.close()


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

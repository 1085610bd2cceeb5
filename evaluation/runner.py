"""Many questions at once: a slot takes the next question once it is free, and every outcome becomes a log line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from time import time
from typing import Protocol

from evaluation.errors import RunAbortedError
from evaluation.plan import Question
from evaluation.prompts import RenderedPrompt
from evaluation.run_directory.log_writer import LogWriter
from evaluation.run_directory.record import Record
from evaluation.status import Status
from evaluation.transport.outcome import Completion, Failure, Outcome


class Asker(Protocol):
    """What answers a question (`transport.client.Client`)."""

    async def ask(self, key: str, prompt: RenderedPrompt) -> Outcome: ...


async def run_questions(
    questions: Sequence[Question],
    asker: Asker,
    log: LogWriter,
    *,
    concurrency: int,
    stop: asyncio.Event,
    on_record: Callable[[Record], None],
) -> None:
    """Ask everything, `concurrency` questions at a time.

    Returns early when `stop` is set: what is under way is dropped and will be asked again, what has an outcome is in
    the log. Raises RunAbortedError when no question can be asked any more.
    """
    pending = iter(questions)
    slots = min(concurrency, len(questions))
    try:
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(_work(pending, asker, log, on_record)) for _ in range(slots)]
            helpers = [
                group.create_task(log.sync_regularly()),
                group.create_task(_cancel_on(stop, workers)),
            ]
            if workers:
                await asyncio.wait(workers)
            for helper in helpers:
                helper.cancel()
    except BaseExceptionGroup as errors:
        aborted, rest = errors.split(RunAbortedError)
        if aborted is None or rest is not None:
            raise
        raise _first(aborted) from None


async def _work(pending: Iterator[Question], asker: Asker, log: LogWriter, on_record: Callable[[Record], None]) -> None:
    for question in pending:  # one iterator for all workers
        if question.prompt is None:
            record = bad_row_record(question)
        else:
            record = make_record(question, await asker.ask(question.item.key, question.prompt))
        log.append(record)
        on_record(record)


async def _cancel_on(stop: asyncio.Event, workers: Sequence[asyncio.Task[None]]) -> None:
    await stop.wait()
    for worker in workers:
        worker.cancel()


def _first(group: BaseExceptionGroup[RunAbortedError]) -> RunAbortedError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def make_record(question: Question, outcome: Outcome) -> Record:
    """The log's record of an outcome."""
    reply = outcome.reply
    completion = reply if isinstance(reply, Completion) else None
    answered = completion is not None and completion.status.is_answered
    return Record(
        key=question.item.key,
        item_id=question.item.item_id,
        row=question.item.row,
        status=reply.status,
        attempt=question.attempts + outcome.attempts,
        text=completion.text if completion else None,
        answer=completion.text.strip() if completion and answered else None,
        error=None if answered else _error(reply),
        failed_attempts=outcome.failed,
        finish_reason=completion.finish_reason if completion else None,
        usage=_usage(completion),
        request_id=outcome.request_id,
        started_at=round(outcome.started_at, 6),
        finished_at=round(outcome.finished_at, 6),
        seconds=round(outcome.seconds, 6),
    )


def bad_row_record(question: Question) -> Record:
    """The record of a row that cannot be asked."""
    now = round(time(), 6)
    return Record(
        key=question.item.key,
        item_id=question.item.item_id,
        row=question.item.row,
        status=Status.CLIENT_DATA,
        attempt=0,
        text=None,
        answer=None,
        error={"message": question.item.error, "http_status": None, "retryable": False},
        started_at=now,
        finished_at=now,
    )


def _error(reply: Completion | Failure) -> dict[str, object]:
    message = reply.message if isinstance(reply, Failure) else "the model gave no answer"
    http_status = reply.http_status if isinstance(reply, Failure) else 200
    return {"message": message, "http_status": http_status, "retryable": reply.status.is_retryable}


def _usage(completion: Completion | None) -> dict[str, int] | None:
    if completion is None:
        return None
    return {"prompt_tokens": completion.prompt_tokens, "completion_tokens": completion.completion_tokens}

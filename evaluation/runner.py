"""Many questions at once: a slot takes the next question once it is free, and every outcome becomes a log line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from evaluation.errors import RunAbortedError
from evaluation.plan import Question
from evaluation.run_directory.log_writer import LogWriter
from evaluation.run_directory.record import Record


class AnswersQuestions(Protocol):
    """`request_types.answer.Answerer`."""

    async def answer(self, question: Question) -> Record: ...


async def run_questions(
    questions: Sequence[Question],
    answerer: AnswersQuestions,
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
            workers = [group.create_task(_work(pending, answerer, log, on_record)) for _ in range(slots)]
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


async def _work(
    pending: Iterator[Question], answerer: AnswersQuestions, log: LogWriter, on_record: Callable[[Record], None]
) -> None:
    for question in pending:  # one iterator for all workers
        record = await answerer.answer(question)
        if question.is_padding:
            continue
        log.append(record)
        on_record(record)


async def _cancel_on(stop: asyncio.Event, workers: Sequence[asyncio.Task[None]]) -> None:
    await stop.wait()
    for worker in workers:
        worker.cancel()


def _first(group: BaseExceptionGroup[RunAbortedError]) -> RunAbortedError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first

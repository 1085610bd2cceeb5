"""From replies to records: status, answer and thinking of a question's final outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import time
from typing import Any

from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem
from evaluation.status import Status
from evaluation.thinking import ThinkingSplit
from evaluation.transport.outcome import Completion, Failure, Outcome, PromptTokens, Reply
from evaluation.transport.protocol import answer_status

_SPLIT_AGAIN = frozenset({Status.OK, Status.OK_TRUNCATED, Status.EMPTY, Status.NO_ANSWER_LENGTH})


def base_record(item: RunItem, outcomes: Sequence[Outcome], earlier_attempts: int) -> Record:
    """What the requests of one question have in common, whatever their kind; status and answer are those of a failure
    where the last of them failed."""
    last = outcomes[-1]
    failed: Counter[str] = Counter()
    for outcome in outcomes:
        failed.update(outcome.failed)
    return Record(
        key=item.key,
        item_id=item.item_id,
        row=item.row,
        status=last.reply.status,
        attempt=earlier_attempts + sum(outcome.attempts for outcome in outcomes),
        text=None,
        answer=None,
        error=error_of(last.reply) if isinstance(last.reply, Failure) else None,
        failed_attempts=dict(failed),
        usage=_usage([outcome.reply for outcome in outcomes]),
        request_id=last.request_id,
        started_at=round(outcomes[0].started_at, 6),
        finished_at=round(max(outcome.finished_at for outcome in outcomes), 6),
        seconds=round(last.seconds, 6),
        index=item.columns.get("index"),
    )


def with_completion(record: Record, completion: Completion, thinking: ThinkingSplit) -> Record:
    """The record of a generated answer."""
    whole = replace(
        record,
        text=completion.text,
        reasoning=completion.reasoning,
        finish_reason=completion.finish_reason,
        server_times=completion.times,
        fingerprint=completion.fingerprint,
    )
    return _split(whole, thinking, completion.reasoning)


def split_again(records: Mapping[str, Record], thinking: ThinkingSplit) -> dict[str, Record]:
    """The same records, their answers taken from the raw text anew."""
    return {key: _split_record(record, thinking) for key, record in records.items()}


def _split_record(record: Record, thinking: ThinkingSplit) -> Record:
    if record.text is None or record.status not in _SPLIT_AGAIN:
        return record
    return _split(record, thinking, record.reasoning if record.thinking == "server" else None)


def _split(record: Record, thinking: ThinkingSplit, reasoning: str | None) -> Record:
    split = thinking.split(record.text or "", reasoning)
    status = answer_status(split.answer, record.finish_reason)
    return replace(
        record,
        status=status,
        answer=split.answer if status.is_answered else None,
        reasoning=split.reasoning or None,
        thinking=split.state.value,
        error=None if status.is_answered else _error("the model gave no answer", 200, status),
    )


def bad_row_record(item: RunItem) -> Record:
    """The record of a row that cannot be asked."""
    now = round(time(), 6)
    return Record(
        key=item.key,
        item_id=item.item_id,
        row=item.row,
        status=Status.CLIENT_DATA,
        attempt=0,
        text=None,
        answer=None,
        error=_error(item.error or "the row cannot be asked", None, Status.CLIENT_DATA),
        started_at=now,
        finished_at=now,
        index=item.columns.get("index"),
    )


def error_of(failure: Failure) -> dict[str, Any]:
    """The log's `error` of a failure."""
    return _error(failure.message, failure.http_status, failure.status)


def _error(message: str, http_status: int | None, status: Status) -> dict[str, Any]:
    return {"class": status.value, "message": message, "http_status": http_status, "retryable": status.is_retryable}


def _usage(replies: Sequence[Reply]) -> dict[str, int] | None:
    usage = {"prompt_tokens": 0, "completion_tokens": 0}
    for reply in replies:
        match reply:
            case Completion():
                usage["prompt_tokens"] += reply.prompt_tokens
                usage["completion_tokens"] += reply.completion_tokens
            case PromptTokens():
                usage["prompt_tokens"] += reply.num_tokens
    return usage if any(usage.values()) else None

"""One final outcome, as the log keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from evaluation.status import Status


@dataclass(frozen=True, kw_only=True)
class Record:
    """Outcome of one item.

    attempt: number of the request that ended it, from 1, counted over all runs; 0 when nothing was asked.
    text: the reply as it came, None when there was none. answer: what remains of it without thinking and blanks around
    it, or the letter of the likeliest choice; None for a failure. reasoning: the thinking, where there is some.
    thinking: its state, see `thinking.ThinkingState`. error: {class, message, http_status, retryable} for a failure.
    failed_attempts: earlier requests of this client for the item, status to number. usage: {prompt_tokens,
    completion_tokens}. started_at, finished_at: seconds since the epoch. seconds: duration of the last request.
    index: the row's own, as the data have it. server_times: {queue, first_token, total} in seconds, as the server
    measured them. fingerprint: what the server says it answered with. imported_from: the result file that an answer was
    taken from instead of asking.
    likelihoods: one entry per continuation, see `request_types.likelihood.Likelihood`. rounds: a dialogue's answered
    turns, see `request_types.dialogue.Dialogue`.
    """

    key: str
    item_id: str
    row: int
    status: Status
    attempt: int
    text: str | None
    answer: str | None
    error: dict[str, Any] | None = None
    failed_attempts: dict[str, int] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: dict[str, int] | None = None
    request_id: str | None = None
    started_at: float = 0.0
    finished_at: float = 0.0
    seconds: float = 0.0
    sample: int = 0
    reasoning: str | None = None
    thinking: str | None = None
    likelihoods: list[dict[str, Any]] | None = None
    rounds: list[dict[str, Any]] | None = None
    index: str | None = None
    server_times: dict[str, float] | None = None
    fingerprint: str | None = None
    imported_from: str | None = None

    @property
    def is_retryable(self) -> bool:
        return bool(self.error and self.error.get("retryable"))

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Ignores members it does not know; KeyError, TypeError or ValueError when needed ones are missing or wrong."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        return cls(**{**known, "status": Status(values["status"])})


@dataclass(frozen=True)
class FinalRecords:
    """What counts, out of all lines. duplicates: answered lines beyond the first of their key."""

    by_key: dict[str, Record]
    duplicates: int


def fold(records: Iterable[Record]) -> FinalRecords:
    """Of the lines of one key, the earliest answer counts; without an answer, the latest failure.

    The result does not depend on the order in which files are read.
    """
    by_key: dict[str, Record] = {}
    answered = 0
    for record in records:
        answered += record.status.is_answered
        current = by_key.get(record.key)
        if current is None or _rank(record) < _rank(current):
            by_key[record.key] = record
    return FinalRecords(by_key, answered - sum(record.status.is_answered for record in by_key.values()))


def _rank(record: Record) -> tuple[int, float, str]:
    if record.status.is_answered:
        return (0, record.finished_at, record.request_id or "")
    return (1, -record.finished_at, record.request_id or "")

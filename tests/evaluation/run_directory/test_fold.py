"""Which line of a key counts."""

from __future__ import annotations

from itertools import permutations

from evaluation.run_directory.record import Record, fold
from evaluation.status import Status


def make_record(status: Status, finished_at: float, key: str = "k") -> Record:
    answer = "x" if status.is_answered else None
    return Record(
        key=key, item_id="i", row=1, status=status, attempt=1, text=answer, answer=answer, finished_at=finished_at
    )


def test_first_answer_wins_over_later_ones_and_over_any_failure_in_any_order():
    first, second = make_record(Status.OK, 5.0), make_record(Status.OK_TRUNCATED, 6.0)
    failure = make_record(Status.TIMEOUT, 1.0)
    for order in permutations([first, second, failure]):
        final = fold(order)
        assert final.by_key == {"k": first}
        assert final.duplicates == 1


def test_latest_failure_counts_when_there_is_no_answer():
    early, late = make_record(Status.TIMEOUT, 1.0), make_record(Status.BAD_REQUEST, 2.0)
    for order in permutations([early, late]):
        assert fold(order).by_key["k"] is late
        assert fold(order).duplicates == 0

"""What is asked again, when, and when it is given up."""

from __future__ import annotations

from random import Random

import pytest

from evaluation.status import Status
from evaluation.transport.outcome import Failure
from evaluation.transport.retry import RetryBudget, RetryPolicy

POLICY = RetryPolicy(max_attempts=4, max_throttled=60.0, base_delay=1.0, max_delay=5.0)


def failure(status: Status, retry_after: float | None = None) -> Failure:
    return Failure(status=status, message="m", retry_after=retry_after)


def budget() -> RetryBudget:
    return RetryBudget(POLICY, Random(1))


@pytest.mark.parametrize(
    "status",
    [Status.BAD_REQUEST, Status.CONTEXT_OVERFLOW, Status.AUTH, Status.CONTENT_FILTER, Status.CLIENT_DATA],
)
def test_what_cannot_change_is_final(status):
    assert budget().delay_after(failure(status), 0.0) is None


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.CONNECTION, Status.SERVER_5XX, Status.MALFORMED_RESPONSE])
def test_back_off_doubles_with_jitter_up_to_the_limit_of_attempts(status):
    spent = budget()
    first, second, third = (spent.delay_after(failure(status), 0.0) for _ in range(3))
    assert first is not None and 0.5 <= first <= 1.0
    assert second is not None and 1.0 <= second <= 2.0
    assert third is not None and 2.0 <= third <= 4.0
    assert spent.delay_after(failure(status), 0.0) is None


@pytest.mark.parametrize("status", [Status.RATE_LIMITED, Status.OVERLOADED])
def test_being_put_off_charges_no_attempt_but_ends(status):
    spent, now, waits = budget(), 100.0, 0
    while (delay := spent.delay_after(failure(status), now)) is not None:
        assert delay <= POLICY.max_delay
        now, waits = now + delay, waits + 1
    assert waits > POLICY.max_attempts
    assert spent.charged == 0
    assert 100.0 + POLICY.max_throttled - POLICY.max_delay <= now <= 100.0 + POLICY.max_throttled


def test_retry_after_is_honoured():
    assert budget().delay_after(failure(Status.RATE_LIMITED, 17.0), 0.0) == 17.0
    assert budget().delay_after(failure(Status.RATE_LIMITED, 0.0), 0.0) > 0
    assert budget().delay_after(failure(Status.OVERLOADED, 3600.0), 0.0) is None, "longer than anyone waits"
    assert budget().delay_after(failure(Status.SERVER_5XX, 3600.0), 0.0) == POLICY.max_delay


def test_progress_between_puts_the_clock_back():
    spent = budget()
    assert spent.delay_after(failure(Status.OVERLOADED), 0.0) is not None
    assert spent.delay_after(failure(Status.SERVER_5XX), 100.0) is not None
    assert spent.delay_after(failure(Status.OVERLOADED), 200.0) is not None

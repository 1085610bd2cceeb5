"""When to ask again: a pure decision from the failure and what was spent so far."""

from __future__ import annotations

import random
from dataclasses import dataclass

from evaluation.transport.outcome import Failure

_JITTER = random.Random()  # one for all: seeding one per question from the system costs more than its draw


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """max_attempts: requests for one item, not counting those the server put off with 429 or 503.
    max_throttled: seconds one item waits while it is put off. base_delay, max_delay: seconds, exponential back-off.
    """

    max_attempts: int = 4
    max_throttled: float = 300.0
    base_delay: float = 0.5
    max_delay: float = 30.0


@dataclass
class RetryBudget:
    """What is left of the policy for one item."""

    policy: RetryPolicy
    jitter: random.Random = _JITTER
    charged: int = 0
    put_off: int = 0
    throttled_since: float | None = None

    def delay_after(self, failure: Failure, now: float) -> float | None:
        """Seconds until the next request, None when this failure is final. `now`: seconds on a monotonic clock."""
        if not failure.status.is_retryable:
            return None
        if failure.status.is_throttling:
            return self._delay_when_throttled(failure, now)
        self.charged += 1
        self.throttled_since = None
        if self.charged >= self.policy.max_attempts:
            return None
        return self._delay(failure, self.charged)

    def _delay_when_throttled(self, failure: Failure, now: float) -> float | None:
        if self.throttled_since is None:
            self.throttled_since, self.put_off = now, 0
        self.put_off += 1
        delay = self._delay(failure, self.put_off)
        return delay if now + delay - self.throttled_since <= self.policy.max_throttled else None

    def _delay(self, failure: Failure, count: int) -> float:
        """Between half and the whole of the exponential delay, and not sooner than the server asked for."""
        ceiling: float = min(self.policy.max_delay, self.policy.base_delay * 2 ** min(count - 1, 16))
        asked = failure.retry_after or 0.0
        if not failure.status.is_throttling:
            asked = min(asked, self.policy.max_delay)
        return max(ceiling * self.jitter.uniform(0.5, 1.0), asked)

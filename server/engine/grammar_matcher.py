"""Which tokens may come next in one sequence, under its grammar.

The matcher is fed with the sequence's own output tokens and nothing else, so preemption does not touch it. The
vocabulary given to the library has one more token than the model's, END: the library allows it exactly where the
text so far is complete. It stands for whatever ends the request: its stop tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from server.engine.grammar_checker import GrammarError
from server.request import ReasoningTokens

Bitmask = NDArray[np.uint8]
"""One bit per token id, the lowest bit of byte 0 first."""


class _Phase(Enum):
    """UNDECIDED: the next token may open the reasoning, or begin the answer."""

    UNDECIDED = 0
    REASONING = 1
    ANSWER = 2


class GrammarMatcher:
    """The state of one sequence.

    matcher: this sequence's own, at its beginning. vocab_size: ids that the model can produce. end_id: the END token.
    stop_token_ids: what ends the request. never_text: those of them that must not come as a part of the answer.
    allowed: what may come next. is_complete: the answer is whole and nothing can follow it.
    Constructor and `advance` raise GrammarError where nothing can be chosen any more or the library gives up.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        *,
        vocab_size: int,
        end_id: int,
        stop_token_ids: Iterable[int] = (),
        never_text: Iterable[int] = (),
        reasoning: ReasoningTokens | None = None,
    ) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end_id = end_id
        self._stop_token_ids = list(stop_token_ids)
        self._never_text = list(never_text)
        self._reasoning = reasoning
        self._phase = _Phase.ANSWER
        if reasoning is not None:
            self._phase = _Phase.REASONING if reasoning.is_open else _Phase.UNDECIDED
        self.is_complete = False
        self.allowed = self._next_mask()
        if not self.allowed.any():
            raise GrammarError(
                "it allows only an empty answer, which takes a stop token to end; ask without ignore_eos"
            )

    def advance(self, token_id: int) -> None:
        """The sequence goes on with this token, which is not a stop token."""
        reasoning = self._reasoning
        if reasoning is not None and self._phase is _Phase.REASONING:
            if token_id == reasoning.end_id:
                self._phase = _Phase.ANSWER
        elif reasoning is not None and self._phase is _Phase.UNDECIDED and token_id == reasoning.start_id:
            self._phase = _Phase.REASONING
        else:
            self._phase = _Phase.ANSWER
            if not self._matcher.consume_token(token_id):
                raise GrammarError(_first_line(self._matcher.get_error()))
            self.is_complete = self._matcher.is_stopped() and not self._matcher.is_error()
        if not self.is_complete:
            self.allowed = self._next_mask()

    def _next_mask(self) -> Bitmask:
        if self._phase is _Phase.REASONING:
            mask = np.full(-(-self._vocab_size // 8), 0xFF, dtype=np.uint8)
            _clear(mask, self._stop_token_ids)  # an answer has to follow
            return mask
        mask = np.zeros(-(-max(self._vocab_size, self._end_id + 1) // 8), dtype=np.uint8)
        computed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)[: len(mask)]
        if self._matcher.is_error():
            raise GrammarError(_first_line(self._matcher.get_error()))
        mask[: len(computed)] = computed
        may_end = bool(mask[self._end_id // 8] >> self._end_id % 8 & 1)
        _clear(mask, [self._end_id, *self._never_text])
        if not mask.any():
            if not may_end:
                raise GrammarError("no token of this model's vocabulary can continue the answer")
            self.is_complete = True
        if may_end:
            _set(mask, self._stop_token_ids)
        if self._phase is _Phase.UNDECIDED and self._reasoning is not None:
            _set(mask, [self._reasoning.start_id])
        return mask[: -(-self._vocab_size // 8)]


def _set(mask: Bitmask, token_ids: list[int]) -> None:
    for token_id in token_ids:
        mask[token_id // 8] |= 1 << token_id % 8


def _clear(mask: Bitmask, token_ids: list[int]) -> None:
    for token_id in token_ids:
        mask[token_id // 8] &= 0xFF ^ (1 << token_id % 8)


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0] or "the answer cannot go on"

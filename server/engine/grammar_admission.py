"""Sequences that wait for their grammar before they may wait for a place in the batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import NamedTuple

from llguidance import LLMatcher

from server.engine.grammar_checker import GrammarError
from server.engine.grammar_compiler import GrammarCompiler
from server.engine.sequence import Sequence, failed_output
from server.request import RequestOutput

logger = logging.getLogger(__name__)

_MAX_SECONDS = 60.0
"""For compiling, and for the compilations before it in the queue."""


class Admission(NamedTuple):
    """ready: sequences that have their matcher now. refused: answers to those that never will."""

    ready: list[Sequence]
    refused: list[RequestOutput]


class _Waiting(NamedTuple):
    sequence: Sequence
    compiled: Future[LLMatcher]
    deadline: float


class GrammarAdmission:
    """In order of arrival; one grammar's failure is its own requests' alone. compiler: on rank 0, None elsewhere."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Have its grammar compiled."""
        assert self._compiler is not None
        assert sequence.params.grammar is not None
        compiled = self._compiler.submit(sequence.params.grammar)
        self._waiting[sequence.request_id] = _Waiting(sequence, compiled, time.monotonic() + _MAX_SECONDS)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget sequences; unknown ids are ignored."""
        dropped = [self._waiting.pop(request_id) for request_id in request_ids if request_id in self._waiting]
        self._cancel_unwanted(dropped)

    def close(self) -> None:
        """End the compiler's thread and process."""
        if self._compiler is not None:
            self._compiler.close()

    def take(self, *, wait_seconds: float = 0.0) -> Admission:
        """Whose wait is over. With wait_seconds, wait that long for one if there are any."""
        if wait_seconds and self._waiting:
            wait({item.compiled for item in self._waiting.values()}, wait_seconds, FIRST_COMPLETED)
        admission = Admission([], [])
        now = time.monotonic()
        over = [item for item in self._waiting.values() if item.compiled.done() or now > item.deadline]
        for item in over:
            del self._waiting[item.sequence.request_id]
            refusal = self._settle(item)
            if refusal is None:
                admission.ready.append(item.sequence)
            else:
                admission.refused.append(refusal)
        self._cancel_unwanted(over)
        return admission

    def _settle(self, item: _Waiting) -> RequestOutput | None:
        """Give the sequence its matcher -> the answer to its request if there is none."""
        sequence = item.sequence
        assert self._compiler is not None
        if not item.compiled.done():
            reason = f"its grammar was not compiled within {_MAX_SECONDS:g} s, others were before it; try again later"
            return failed_output(sequence.request_id, reason, is_overload=True)
        error = item.compiled.exception()
        if error is None:
            try:
                sequence.matcher = self._compiler.matcher(item.compiled.result(), sequence.params)
            except GrammarError as unusable:
                error = unusable
        if error is None:
            return None
        if isinstance(error, GrammarError):
            return invalid_grammar(sequence, error)
        # Anything else, a panic of the native library included (no Exception, but a BaseException): it was raised in
        # the compiler's thread, where the engine's own state cannot have suffered, so it is this request's alone.
        logger.error("a grammar could not be compiled", exc_info=error)
        return failed_output(sequence.request_id, f"its grammar could not be compiled: {type(error).__name__}: {error}")

    def _cancel_unwanted(self, dropped: Iterable[_Waiting]) -> None:
        """Take compilations that nobody waits for any more out of the queue; one that runs or is over stays."""
        wanted = {item.compiled for item in self._waiting.values()}
        for compiled in {item.compiled for item in dropped} - wanted:
            compiled.cancel()


def invalid_grammar(sequence: Sequence, error: GrammarError) -> RequestOutput:
    """The answer to a request whose grammar is at fault."""
    grammar = sequence.params.grammar
    assert grammar is not None
    return failed_output(sequence.request_id, f"{grammar.field}: {error}", invalid_field=grammar.field)

"""Sequences that wait for their grammar before they may wait for a place in the batch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import NamedTuple

from llguidance import LLMatcher

from server.engine.grammar_checker import GrammarError
from server.engine.grammar_compiler import GrammarCompiler
from server.engine.sequence import Sequence, failed_output
from server.request import RequestOutput

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
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

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
        for request_id, item in list(self._waiting.items()):
            if item.compiled.done() or now > item.deadline:
                del self._waiting[request_id]
                self._settle(item, admission)
        return admission

    def _settle(self, item: _Waiting, admission: Admission) -> None:
        sequence = item.sequence
        assert self._compiler is not None
        if not item.compiled.done():
            reason = f"its grammar was not compiled within {_MAX_SECONDS:g} s, others were before it; try again later"
            admission.refused.append(failed_output(sequence.request_id, reason))
            return
        try:
            sequence.matcher = self._compiler.matcher(item.compiled.result(), sequence.params)
        except GrammarError as error:
            admission.refused.append(invalid_grammar(sequence, error))
        else:
            admission.ready.append(sequence)


def invalid_grammar(sequence: Sequence, error: GrammarError) -> RequestOutput:
    """The answer to a request whose grammar is at fault."""
    grammar = sequence.params.grammar
    assert grammar is not None
    return failed_output(sequence.request_id, f"{grammar.field}: {error}", invalid_field=grammar.field)

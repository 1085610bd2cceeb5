"""Sequences that wait for a grammar: whose failure is whose, and what is not compiled because nobody waits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from llguidance import LLMatcher

from server.engine import grammar_admission
from server.engine.grammar_admission import Admission, GrammarAdmission
from server.engine.grammar_compiler import GrammarCompiler
from server.engine.sequence import Sequence
from server.request import EngineRequest, Grammar, SamplingParams


class Panic(BaseException):
    """As the native library's panics are: not an Exception."""


class PanickingCompiler(GrammarCompiler):
    """Its library panics over the grammar "panic"."""

    def _compile(self, grammar: Grammar) -> LLMatcher:
        if grammar.text == "panic":
            raise Panic("index out of bounds")
        return super()._compile(grammar)


@pytest.fixture
def compiler(tokenizer_directory: Path) -> Iterator[GrammarCompiler]:
    compiler = PanickingCompiler(tokenizer_directory, vocab_size=400)
    yield compiler
    compiler.close()


@pytest.fixture
def busy(compiler: GrammarCompiler) -> Iterator[threading.Event]:
    """The compiler is busy until the event is set."""
    may_go_on = threading.Event()
    compiler._pool.submit(may_go_on.wait)
    yield may_go_on
    may_go_on.set()


def sequence(name: str, regex: str) -> Sequence:
    grammar = Grammar(kind="regex", text=regex, field="regex")
    return Sequence(EngineRequest(request_id=name, prompt_token_ids=[1], params=SamplingParams(grammar=grammar)), 16)


def take_all(admission: GrammarAdmission) -> Admission:
    all_taken = Admission([], [])
    while admission:
        taken = admission.take(wait_seconds=0.1)
        all_taken.ready.extend(taken.ready)
        all_taken.refused.extend(taken.refused)
    return all_taken


def test_a_panic_of_the_library_is_the_answer_to_its_request_alone(compiler: GrammarCompiler) -> None:
    admission = GrammarAdmission(compiler)
    admission.add(sequence("bad", "panic"))
    admission.add(sequence("good", "yes"))
    ready, refused = take_all(admission)
    assert [item.request_id for item in ready] == ["good"]
    [output] = refused
    assert (output.request_id, output.finish_reason, output.invalid_field) == ("bad", "error", None)
    assert output.error == "its grammar could not be compiled: Panic: index out of bounds"


def test_a_process_that_cannot_be_started_fails_its_request_and_the_next_one_tries_again(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = GrammarAdmission(compiler)
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/nonexistent/python")
        admission.add(sequence("a", "yes"))
        [output] = take_all(admission).refused
    assert "FileNotFoundError" in (output.error or "")
    admission.add(sequence("b", "yes"))
    assert [item.request_id for item in take_all(admission).ready] == ["b"]


def test_what_nobody_waits_for_is_not_compiled(compiler: GrammarCompiler, busy: threading.Event) -> None:
    admission = GrammarAdmission(compiler)
    for name, regex in (("a", "shared"), ("b", "shared"), ("c", "alone")):
        admission.add(sequence(name, regex))
    shared, alone = (compiler.submit(Grammar(kind="regex", text=text, field="regex")) for text in ("shared", "alone"))
    admission.abort(["a", "c", "unknown"])
    assert alone.cancelled()
    assert not shared.cancelled()
    admission.add(sequence("d", "alone"))
    busy.set()
    assert [item.request_id for item in take_all(admission).ready] == ["b", "d"]
    with pytest.raises(CancelledError):
        alone.result()


def test_who_waits_too_long_behind_others_is_told_to_come_again(
    compiler: GrammarCompiler, busy: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_admission, "_MAX_SECONDS", -1.0)
    admission = GrammarAdmission(compiler)
    admission.add(sequence("late", "yes"))
    compiled = compiler.submit(Grammar(kind="regex", text="yes", field="regex"))
    [output] = admission.take().refused
    assert output.is_overload
    assert "try again later" in (output.error or "")
    assert compiled.cancelled()

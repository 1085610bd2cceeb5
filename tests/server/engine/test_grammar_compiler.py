"""Grammars over a real tokenizer: what they allow, what they cost others, and what cannot be compiled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from server.engine.grammar_checker import GrammarError
from server.engine.grammar_compiler import GrammarCompiler
from server.engine.grammar_matcher import GrammarMatcher
from server.request import Grammar, ReasoningTokens, SamplingParams

EOS = 2


@pytest.fixture(scope="module")
def compiler(tokenizer_directory: Path) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(tokenizer_directory, vocab_size=400)
    yield compiler
    compiler.close()


@pytest.fixture(scope="module")
def tokenizer(tokenizer_directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_directory / "tokenizer.json"))


def matcher_of(
    compiler: GrammarCompiler, kind: str, text: str, reasoning: ReasoningTokens | None = None
) -> GrammarMatcher:
    grammar = Grammar(kind=kind, text=text, field="f", reasoning=reasoning)  # type: ignore[arg-type]
    params = SamplingParams(grammar=grammar, stop_token_ids=(EOS,))
    return compiler.matcher(compiler.submit(grammar).result(20), params)


def allowed(matcher: GrammarMatcher) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(matcher.allowed, bitorder="little")).tolist())


def write(matcher: GrammarMatcher, tokenizer: Tokenizer, text: str) -> None:
    for token_id in tokenizer.encode(text).ids:
        assert token_id in allowed(matcher)
        matcher.advance(token_id)


def test_only_what_can_continue_is_allowed_and_the_end_only_where_it_is_complete(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = matcher_of(compiler, "regex", "hel+o?")
    assert {tokenizer.id_to_token(i)[0] for i in allowed(matcher)} == {"h"}
    write(matcher, tokenizer, "hel")
    assert EOS in allowed(matcher)
    assert not matcher.is_complete
    write(matcher, tokenizer, "lo")
    assert matcher.is_complete
    assert allowed(matcher) >= {EOS} or matcher.is_complete


def test_a_token_that_does_not_fit_is_an_error(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = matcher_of(compiler, "regex", "[0-9]+")
    with pytest.raises(GrammarError, match="grammar"):
        matcher.advance(tokenizer.token_to_id("x"))


def test_control_tokens_are_never_part_of_an_answer(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = matcher_of(compiler, "regex", "(?s:.*)x")
    assert allowed(matcher).isdisjoint(range(3))
    write(matcher, tokenizer, "x")
    assert allowed(matcher).intersection(range(3)) == {EOS}


@pytest.mark.parametrize("text", ["<|im_end|>x", "<tool_call>"])
def test_text_that_spells_a_control_token_is_written_without_it(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str
) -> None:
    control = set(tokenizer.get_added_tokens_decoder())
    for kind, grammar in (("regex", text.replace("|", r"\|")), ("json_schema", json.dumps({"const": text}))):
        matcher = matcher_of(compiler, kind, grammar)
        written = ""
        while not matcher.is_complete:
            assert allowed(matcher).isdisjoint(control)
            token_id = max(allowed(matcher))
            written += tokenizer.decode([token_id])
            matcher.advance(token_id)
        assert written == (text if kind == "regex" else f'"{text}"')


def test_ids_beyond_the_vocabulary_are_never_allowed(tokenizer_directory: Path) -> None:
    for vocab_size in (390, 400, 416):
        compiler = GrammarCompiler(tokenizer_directory, vocab_size)
        try:
            mask = allowed(matcher_of(compiler, "regex", "(?s:.*)"))
        finally:
            compiler.close()
        assert max(mask) < min(vocab_size, 400)


def test_gbnf_and_lark_say_the_same(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    for text in ('root ::= "a" word\nword ::= [b-c]+', 'start: "a" WORD\nWORD: /[b-c]+/'):
        matcher = matcher_of(compiler, "grammar", text)
        write(matcher, tokenizer, "abc")
        assert EOS in allowed(matcher)


def test_an_empty_answer_needs_a_stop_token(compiler: GrammarCompiler) -> None:
    assert allowed(matcher_of(compiler, "regex", "a{0}")) == {EOS}
    grammar = Grammar(kind="regex", text="a{0}", field="f")
    with pytest.raises(GrammarError, match="ignore_eos"):
        compiler.matcher(compiler.submit(grammar).result(20), SamplingParams(grammar=grammar))


def test_reasoning_that_the_prompt_opened_is_free_and_cannot_end_the_answer(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    tag = tokenizer.token_to_id("<tool_call>")
    matcher = matcher_of(compiler, "regex", "yes|no", ReasoningTokens(tag, 1, is_open=True))
    assert allowed(matcher) == set(range(400)) - {EOS}
    write(matcher, tokenizer, "lazy dog")
    matcher.advance(1)
    assert {tokenizer.id_to_token(i)[0] for i in allowed(matcher)} == {"y", "n"}
    write(matcher, tokenizer, "no")
    assert matcher.is_complete


def test_reasoning_that_the_model_may_open_itself(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    tag = tokenizer.token_to_id("<tool_call>")
    for thinks in (True, False):
        matcher = matcher_of(compiler, "regex", "yes|no", ReasoningTokens(tag, 1, is_open=False))
        assert tag in allowed(matcher)
        if thinks:
            matcher.advance(tag)
            write(matcher, tokenizer, "fox")
            matcher.advance(1)
        write(matcher, tokenizer, "yes")
        assert matcher.is_complete


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("regex", "(a|", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("json_schema", '{"type": "wrong"}', "Invalid type"),
        ("json_schema", '{"not": {}}', "not"),
        ("json_schema", '{"$ref": "http://127.0.0.1:1/x"}', "does not fetch"),
        ("json_schema", '{"type": "array", "items":' * 9000 + "{}" + "}" * 9000, "recursion"),
        ("grammar", 'start: "a" b', "unknown name"),
        ("grammar", "root ::= (", "Expected"),
        ("grammar", "root ::= " + "(" * 5000, "recursion"),
        ("grammar", "start: " + "(" * 5000, "nested"),
        # Each of the following overflows the library's stack, which kills the process that compiles it.
        ("grammar", "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(20000)) + 'a20000: "x"', "too complex"),
        (
            "json_schema",
            json.dumps({"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(20000)}}),
            "too complex",
        ),
    ],
)
def test_what_cannot_be_compiled_is_an_error_of_its_own_and_the_next_one_works(
    compiler: GrammarCompiler, tokenizer: Tokenizer, kind: str, text: str, reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason):
        matcher_of(compiler, kind, text)
    write(matcher_of(compiler, "regex", "lazy"), tokenizer, "lazy")


def test_equal_grammars_are_compiled_once_and_do_not_share_their_state(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = Grammar(kind="regex", text="(fox|dog){3}", field="f")
    assert compiler.submit(grammar) is compiler.submit(Grammar(kind="regex", text="(fox|dog){3}", field="g"))
    first, second = (matcher_of(compiler, "regex", "(fox|dog){3}") for _ in range(2))
    write(first, tokenizer, "fox")
    write(second, tokenizer, "dogfoxfox")
    assert second.is_complete
    assert not first.is_complete


def test_a_tokenizer_that_the_library_cannot_read_fails_requests_not_the_start(
    padded_model: tuple[object, Path],
) -> None:
    compiler = GrammarCompiler(padded_model[1], 131)
    try:
        with pytest.raises(GrammarError, match="tokenizer"):
            compiler.submit(Grammar(kind="regex", text="a", field="f")).result(20)
    finally:
        compiler.close()

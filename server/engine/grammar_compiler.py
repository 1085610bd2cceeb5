"""Compiles grammars beside the running batch: in a thread, and only what a process of its own has survived."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from server.engine.grammar_check import STACK_BYTES, parser_limits
from server.engine.grammar_checker import GrammarChecker, GrammarError
from server.engine.grammar_matcher import GrammarMatcher
from server.request import Grammar, SamplingParams

_COMPILE_SECONDS = 10.0
_MAX_CACHED = 64
_STACK_BYTES = 8 * STACK_BYTES
"""Of the compiling thread: what passes in the trial process, with an eighth of it, cannot overflow here."""

_END_TOKEN = "<|megaserve_end_of_answer|>"


class GrammarCompiler:
    """Grammars for one model's vocabulary; compiled ones are kept, least recently used out first.

    tokenizer: `tokenizer.json` or its directory. vocab_size: ids that the model can produce.
    Building it takes about 0.3 s for 50,000 tokens and holds the interpreter's lock, so it is done before serving.
    """

    def __init__(self, tokenizer: Path, vocab_size: int) -> None:
        backend = Tokenizer.from_file(str(tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer))
        backend.no_padding()
        backend.no_truncation()
        self._vocab_size = vocab_size
        self._control_ids = frozenset(backend.get_added_tokens_decoder())
        backend.add_special_tokens([_END_TOKEN])
        end_id = backend.token_to_id(_END_TOKEN)
        assert end_id is not None, "it was just added"
        self._end_id = end_id
        self._unsupported = ""
        self._tokenizer: LLTokenizer | None = None
        size = max(vocab_size, self._end_id + 1)
        try:
            self._tokenizer = LLTokenizer(backend.to_str(), n_vocab=size, eos_token=self._end_id)
        except ValueError as error:
            self._unsupported = f"this model's tokenizer cannot be used with grammars: {error}"
        self._checker = GrammarChecker(size, _COMPILE_SECONDS)
        self._compiled: OrderedDict[tuple[str, str], Future[LLMatcher]] = OrderedDict()
        self._pool = _pool_with_stack()

    def submit(self, grammar: Grammar) -> Future[LLMatcher]:
        """Its matcher at the beginning, to be copied for each sequence; fails with GrammarError."""
        key = (grammar.kind, grammar.text)
        future = self._compiled.get(key)
        if future is None or future.cancelled() or (future.done() and future.exception() is not None):
            future = self._pool.submit(self._compile, grammar)
            self._compiled[key] = future
        self._compiled.move_to_end(key)
        if len(self._compiled) > _MAX_CACHED:
            self._compiled.popitem(last=False)
        return future

    def matcher(self, compiled: LLMatcher, params: SamplingParams) -> GrammarMatcher:
        """For one sequence. Raises GrammarError when not even a first token is possible."""
        assert params.grammar is not None
        return GrammarMatcher(
            compiled.deep_copy(),
            vocab_size=self._vocab_size,
            end_id=self._end_id,
            stop_token_ids=params.stop_token_ids,
            never_text=self._control_ids.intersection(params.stop_token_ids),
            reasoning=params.grammar.reasoning,
        )

    def close(self) -> None:
        """End thread and process."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._checker.close()

    def _compile(self, grammar: Grammar) -> LLMatcher:
        if self._tokenizer is None:
            raise GrammarError(self._unsupported)
        lark = self._checker.check(grammar.kind, grammar.text)
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise GrammarError(matcher.get_error().strip())
        return matcher


def _pool_with_stack() -> ThreadPoolExecutor:
    """One thread, started now: the size of a stack can only be set for all threads started from then on."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        pool.submit(int).result()
    finally:
        threading.stack_size(before)
    return pool

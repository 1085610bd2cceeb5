"""`grammar_check.py VOCABULARY_SIZE` tries grammars out: one JSON line in, one JSON line out, until its input ends.

A grammar comes from a client, and the library that compiles it is recursive native code: some inputs (a chain of
thousands of rules) overflow its stack, which ends the process it runs in. So each new grammar is first compiled here,
where nothing is lost. In: {"kind", "text"}. Out: {"grammar"}, as Lark, or {"error"}.
"""

from __future__ import annotations

import json
import resource
import sys

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

STACK_BYTES = 8 * 2**20
"""Of this process, whatever limit it was started with."""

_MAX_BYTES = 2 * 2**30
"""Of address space: a grammar that needs more fails here rather than in the engine."""

_HEADER = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, the library otherwise allows the tokenizer's own choice of tokens alone. That fails
where the text happens to spell a control token."""


class ByteTokenizer:
    """Single bytes, and as many ids as the model has, because grammars name tokens by their ids; the last one ends."""

    def __init__(self, vocab_size: int) -> None:
        self.eos_token_id = vocab_size - 1
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]
        self.tokens = [bytes([byte]) for byte in range(256)] + [b""] * (vocab_size - 257) + [b"\xff<end>"]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def parser_limits() -> LLParserLimits:
    """Bounds on what compiling and each step may cost: about 100 ms, 20 ms and 100 MB."""
    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def translate(kind: str, text: str) -> str:
    """A grammar in Lark. Raises ValueError, RecursionError, or the library's own error about GBNF."""
    match kind:
        case "json_schema":
            return f"{_HEADER}start: %json {json.dumps(json.loads(text))}"
        case "regex":
            quoted: str = json.loads(LLMatcher.grammar_from_regex(text))["grammars"][0]["lark_grammar"]
            return _HEADER + quoted
        case _:
            return _HEADER + any_to_lark(text)


def answer(kind: str, text: str, tokenizer: LLTokenizer) -> dict[str, str]:
    """Compile and compute one mask, over a vocabulary of single bytes."""
    try:
        grammar = translate(kind, text)
    except Exception as error:  # the translator's error class is not exported, and all of them mean the same here
        return {"error": str(error) or type(error).__name__}
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return {"error": matcher.get_error()} if matcher.is_error() else {"grammar": grammar}


def main() -> None:
    _limit(resource.RLIMIT_STACK, STACK_BYTES)
    _limit(resource.RLIMIT_AS, _MAX_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    tokenizer = LLTokenizer(TokenizerWrapper(ByteTokenizer(int(sys.argv[1]))))
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(request["kind"], request["text"], tokenizer)), flush=True)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()

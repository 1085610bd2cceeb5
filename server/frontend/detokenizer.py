"""Token ids to text, one token at a time, such that the pieces joined are the text of the whole.

Two ways: byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM) map each token to bytes, and an incremental UTF-8
decoder holds back what is not yet a character. Everything else decodes a short window of tokens twice and emits the
difference, holding back while it ends in U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer, decoders

from server.frontend.tokenizer import PromptTokenizer

_REPLACEMENT = "�"

_MAX_HELD_TOKENS = 8
"""A UTF-8 character has at most four bytes; a longer run of undecodable tokens is not waiting for anything."""

_NUM_CONTEXT_TOKENS = 6
"""Prompt tokens that the window decoder looks at, so that a word that continues the prompt keeps its leading space."""


class Detokenizer(Protocol):
    """The state of one sequence's text."""

    def push(self, token_id: int) -> str:
        """The text that this token completes, perhaps empty."""

    def flush(self) -> str:
        """What is still held back, at the end of the sequence."""


class TokenBytes:
    """The bytes of each token of a byte-level vocabulary, as the tokenizers library's ByteLevel decoder has them."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._by_id: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        known = self._by_id.get(token_id)
        if known is None:
            known = self._by_id[token_id] = _bytes_of(self._backend.id_to_token(token_id) or "")
        return known


class ByteLevelDetokenizer:
    """Exact and cheap: a table look-up and the standard library's incremental decoder."""

    def __init__(self, table: TokenBytes, skipped: frozenset[int]) -> None:
        self._table = table
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._table[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any decoder: text of a window with the new token minus text of the window without it.

    context: the last tokens of the prompt. They are used only when they decode to whole characters, so that no part
    of the prompt can appear in the output.
    """

    def __init__(self, backend: Tokenizer, context: Sequence[int], skipped: frozenset[int]) -> None:
        self._backend = backend
        self._skipped = skipped
        tail = [token_id for token_id in context[-_NUM_CONTEXT_TOKENS:] if token_id not in skipped]
        self._window = [] if self._text(tail).endswith(_REPLACEMENT) else tail
        self._num_emitted = len(self._window)  # tokens of the window whose text is out

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        return self._emit(final=False)

    def flush(self) -> str:
        return self._emit(final=True)

    def _emit(self, *, final: bool) -> str:
        before = self._text(self._window[: self._num_emitted])
        after = self._text(self._window)
        held = len(self._window) - self._num_emitted
        if after.endswith(_REPLACEMENT) and held <= _MAX_HELD_TOKENS and not final:
            return ""
        if len(after) > len(before) or held > _MAX_HELD_TOKENS:
            # The tokens emitted now are the context of the next ones; a context without text would lose a space.
            self._window = self._window[self._num_emitted :]
        self._num_emitted = len(self._window)
        return after[len(before) :]

    def _text(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=False)


class DetokenizerFactory:
    """Makes detokenizers for one tokenizer, choosing the way once."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._backend = tokenizer.backend
        self._special = tokenizer.special_token_ids
        self._skipped = {frozenset[int](): self._special}  # by the special tokens that are shown: few sets, all ours
        is_byte_level = isinstance(self._backend.decoder, decoders.ByteLevel)
        self._table = TokenBytes(self._backend) if is_byte_level else None

    def create(
        self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool, shown: frozenset[int] = frozenset()
    ) -> Detokenizer:
        """A fresh state for the continuation of this prompt. shown: special tokens that are not skipped."""
        skipped = self._skipped_unless(shown) if skip_special_tokens else frozenset()
        if self._table is not None:
            return ByteLevelDetokenizer(self._table, skipped)
        return WindowDetokenizer(self._backend, prompt_token_ids, skipped)

    def _skipped_unless(self, shown: frozenset[int]) -> frozenset[int]:
        """One set for all sequences: a vocabulary may have thousands of special tokens."""
        if shown not in self._skipped:
            self._skipped[shown] = self._special - shown
        return self._skipped[shown]

    def is_special(self, token_id: int) -> bool:
        """Whether the token is no text."""
        return token_id in self._special

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token by itself; for log-probability listings."""
        if self._table is not None:
            return self._table[token_id]
        return self._backend.decode([token_id], skip_special_tokens=False).encode()

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself, with U+FFFD for a part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's reversible alphabet: printable bytes stand for themselves, the others for characters from U+0100 on.

    Source: `bytes_to_unicode` in the GPT-2 release's encoder.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()


def _bytes_of(token: str) -> bytes:
    """A token outside the alphabet (an added token with a space, say) stands for its own text."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()

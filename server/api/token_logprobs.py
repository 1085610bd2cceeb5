"""Log-probabilities in three shapes: OpenAI's old one of completions, its new one of chats, and vLLM's of prompts."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from server.frontend.detokenizer import DetokenizerFactory
from server.request import TokenLogprob

Position = tuple[int, TokenLogprob | None]
"""A token and what is known about it; nothing is known about the first token of a prompt."""


class TextOffsets:
    """Where the tokens of one text begin, in characters, told token after token.

    The parts of one character share its offset.
    """

    def __init__(self, detokenizers: DetokenizerFactory) -> None:
        self._detokenizers = detokenizers
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def next(self, token_id: int) -> int:
        """The offset of the next token, which is this one."""
        offset = self._offset
        self._offset += len(self._characters.decode(self._detokenizers.token_bytes(token_id)))
        return offset


def completion_logprobs(
    positions: Sequence[Position], num_top: int, detokenizers: DetokenizerFactory, offsets: TextOffsets
) -> dict[str, Any]:
    """Parallel lists: tokens, token_logprobs, top_logprobs (a dictionary by token text), text_offset.

    The chosen token is always among the alternatives. Two tokens of the same text share an entry, the likelier one's.
    offsets: of the text that these positions continue.
    """
    return {
        "tokens": [_token_text(token_id, detokenizers) for token_id, _ in positions],
        "token_logprobs": [None if entry is None else entry.logprob for _, entry in positions],
        "top_logprobs": [None if entry is None else _by_text(entry, num_top, detokenizers) for _, entry in positions],
        "text_offset": [offsets.next(token_id) for token_id, _ in positions],
    }


def chat_logprobs(entries: Sequence[TokenLogprob], detokenizers: DetokenizerFactory) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}]}`."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        text, data = detokenizers.token_text(token_id), detokenizers.token_bytes(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(data)}

    return {
        "content": [
            {
                **one(entry.token_id, entry.logprob),
                "top_logprobs": [
                    one(token_id, logprob)
                    for token_id, logprob in zip(entry.top_token_ids, entry.top_logprobs, strict=True)
                ],
            }
            for entry in entries
        ]
    }


def prompt_logprobs_by_id(
    prompt_token_ids: Sequence[int],
    entries: Sequence[TokenLogprob | None],
    num_top: int,
    detokenizers: DetokenizerFactory,
) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's prompt_logprobs: per position its token and the likeliest ones, by token id.

    rank: 1 for the likeliest; null for a prompt token further down than was asked for.
    """

    def one(token_id: int, logprob: float, rank: int | None) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": detokenizers.token_text(token_id)}

    positions: list[dict[str, dict[str, Any]] | None] = []
    for token_id, entry in zip(prompt_token_ids, entries, strict=True):
        if entry is None:
            positions.append(None)
            continue
        by_id = {str(token_id): one(token_id, entry.logprob, None)}
        for rank, (other, logprob) in enumerate(_top(entry, num_top), start=1):
            by_id[str(other)] = one(other, logprob, rank)
        positions.append(by_id)
    return positions


def _top(entry: TokenLogprob, num_top: int) -> list[tuple[int, float]]:
    return list(zip(entry.top_token_ids, entry.top_logprobs, strict=True))[:num_top]


def _by_text(entry: TokenLogprob, num_top: int, detokenizers: DetokenizerFactory) -> dict[str, float]:
    by_text: dict[str, float] = {}
    for token_id, logprob in (*_top(entry, num_top), (entry.token_id, entry.logprob)):
        text = _token_text(token_id, detokenizers)
        by_text[text] = max(logprob, by_text.get(text, logprob))
    return by_text


def _token_text(token_id: int, detokenizers: DetokenizerFactory) -> str:
    """The token's text; `bytes:\\xf0\\x9f` for a part of a character, as OpenAI writes it."""
    data = detokenizers.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

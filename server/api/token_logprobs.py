"""Log-probabilities in OpenAI's two shapes: the old one of completions and the new one of chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.frontend.detokenizer import DetokenizerFactory
from server.request import TokenLogprob

Position = tuple[int, TokenLogprob | None]
"""A token and what is known about it; nothing is known about the first token of a prompt."""


def completion_logprobs(
    positions: Sequence[Position], detokenizers: DetokenizerFactory, first_offset: int = 0
) -> dict[str, Any]:
    """Parallel lists: tokens, token_logprobs, top_logprobs (a dictionary by token text), text_offset.

    The chosen token is always among the alternatives. Two tokens of the same text share an entry, the likelier one's.
    """
    tokens, offsets, offset = [], [], first_offset
    for token_id, _ in positions:
        text = _token_text(token_id, detokenizers)
        tokens.append(text)
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": [None if entry is None else entry.logprob for _, entry in positions],
        "top_logprobs": [None if entry is None else _by_text(entry, detokenizers) for _, entry in positions],
        "text_offset": offsets,
    }


def chat_logprobs(entries: Sequence[TokenLogprob], detokenizers: DetokenizerFactory) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}]}`."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        data = detokenizers.token_bytes(token_id)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

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


def _by_text(entry: TokenLogprob, detokenizers: DetokenizerFactory) -> dict[str, float]:
    by_text: dict[str, float] = {}
    pairs = [*zip(entry.top_token_ids, entry.top_logprobs, strict=True), (entry.token_id, entry.logprob)]
    for token_id, logprob in pairs:
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

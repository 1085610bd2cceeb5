"""Checks of single fields, with messages that name the field, the limit and the value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from server.errors import RequestError

_MAX_SHOWN = 60


class Range(NamedTuple):
    """Numbers from low (or just above it, if low_is_open) to high."""

    low: float
    high: float
    low_is_open: bool = False

    def check(self, field: str, value: float) -> None:
        """Raises RequestError when `value` is outside, NaN included."""
        above = value > self.low if self.low_is_open else value >= self.low
        if not (above and value <= self.high):
            comparison = "greater than" if self.low_is_open else "at least"
            raise RequestError(
                f"{field} must be {comparison} {self.low} and at most {self.high}, but is {shown(value)}", field=field
            )


RANGES: Mapping[str, Range] = {
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, low_is_open=True),
    "min_p": Range(0, 1),
    "top_k": Range(-1, 2**31 - 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 10, low_is_open=True),
    "seed": Range(-(2**63), 2**63 - 1),
}
"""Sampling parameters whose limits are the same everywhere."""

PRIORITY = Range(-(2**31), 2**31 - 1)
LOGIT_BIAS = Range(-100, 100)


def check_token_ids(field: str, token_ids: list[int], vocab_size: int) -> None:
    """Raises RequestError for the first id outside [0, vocab_size)."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    index = next(i for i, token_id in enumerate(token_ids) if not 0 <= token_id < vocab_size)
    raise RequestError(
        f"{field}[{index}] must be a token id from 0 to {vocab_size - 1} (the vocabulary has {vocab_size}), "
        f"but is {shown(token_ids[index])}",
        field=f"{field}[{index}]",
    )


def check_count(field: str, count: int, limit: int, what: str) -> None:
    """Raises RequestError when a list is longer than `limit`."""
    if count > limit:
        raise RequestError(f"{field} may have at most {limit} {what}, but has {count}", field=field)


def shown(value: Any) -> str:
    """The value of a JSON field for a message: short, whatever was sent; what is cut off is never written out."""
    text = ""
    try:
        for piece in _pieces(value):
            text += piece
            if len(text) > _MAX_SHOWN:
                return text[:_MAX_SHOWN] + "..."
    except ValueError:  # an integer beyond the interpreter's limit of digits
        return "a very long number"
    return text


def _pieces(value: Any) -> Iterator[str]:
    """What `repr` writes, bit by bit. A string longer than any message is shortened."""
    match value:
        case list():
            yield "["
            for index, item in enumerate(value):
                yield ", " if index else ""
                yield from _pieces(item)
            yield "]"
        case dict():
            yield "{"
            for index, (key, item) in enumerate(value.items()):
                yield ", " if index else ""
                yield from _pieces(key)
                yield ": "
                yield from _pieces(item)
            yield "}"
        case str():
            yield repr(value[: _MAX_SHOWN + 1])
        case _:
            yield repr(value)

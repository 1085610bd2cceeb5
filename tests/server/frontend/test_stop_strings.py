"""Stop strings: against a slow definition, for any way of cutting the text into pieces."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from server.frontend.stop_strings import StopStrings

LETTERS = st.text("ab€😀", max_size=30)
STOPS = st.lists(st.text("ab€😀", min_size=1, max_size=5), max_size=4)


def by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Look at every beginning of the text, shortest first; the longest stop string it ends with ends it."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def stream(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    matcher = StopStrings(stops, include_in_output=include)
    shown = ""
    for piece in pieces:
        text, matched = matcher.push(piece)
        shown += text
        if matched is not None:
            return shown, matched
    return shown + matcher.flush(), None


@given(st.lists(st.text("ab€😀", max_size=6), max_size=8), STOPS)
def test_any_split_gives_what_the_definition_gives(pieces: list[str], stops: list[str]) -> None:
    assert stream(pieces, stops) == by_definition("".join(pieces), stops)


@given(LETTERS, STOPS)
def test_the_stop_string_can_be_included(text: str, stops: list[str]) -> None:
    before, stop = by_definition(text, stops)
    assert stream([text], stops, include=True) == (before + (stop or ""), stop)


@given(LETTERS, STOPS)
def test_what_was_shown_never_has_the_beginning_of_a_stop_string_that_follows(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = ""
    for character in text:
        piece, matched = matcher.push(character)
        shown += piece
        if matched is not None:
            break
    assert by_definition(text, stops)[0].startswith(shown)


def test_exactly_the_longest_possible_beginning_is_held_back() -> None:
    matcher = StopStrings(["</answer>"])
    assert matcher.push("yes </ans") == ("yes ", None)
    assert matcher.push("<") == ("</ans", None)
    assert matcher.flush() == "<"


def test_sequences_share_what_a_long_stop_string_needs() -> None:
    stop = "ab" * 500
    tracemalloc.start()
    try:
        matchers = [StopStrings([stop]) for _ in range(200)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * len(stop), "less than a byte for each character and sequence"
    assert [matcher.push("x" + stop)[1] for matcher in matchers] == [stop] * 200

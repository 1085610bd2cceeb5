"""Guesses are what followed the longest known end, and their number follows how often they were right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.ngram_guess import LONGEST, SHORTEST, NgramGuesser, NgramIndex


def continuation_by_scanning(tokens: list[int], count: int) -> list[int]:
    """The slow truth: all ends are compared, the longest agreement wins, then the most recent.

    Up to 18 tokens, for no pair can end in more earlier places than are looked at.
    """
    for length in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                following = tokens[end:]
                return [following[index % len(following)] for index in range(count)]
    return []


@given(tokens=st.lists(st.integers(0, 2), max_size=18), count=st.integers(1, 9), steps=st.integers(1, 18))
def test_a_growing_sequence_is_continued_as_by_scanning_it(tokens: list[int], count: int, steps: int) -> None:
    growing: list[int] = []
    index = NgramIndex(growing)
    for begin in range(0, len(tokens), steps):
        growing += tokens[begin : begin + steps]
        assert index.continuation(count) == continuation_by_scanning(growing, count)


def test_the_longer_agreement_wins_over_the_more_recent_one() -> None:
    tokens = [1, 2, 3, 70, 0, 2, 3, 80, 0, 1, 2, 3]
    assert NgramIndex(tokens).continuation(1) == [70]
    assert NgramIndex([*tokens, 70, 5, 2, 3]).continuation(1) == [70]
    assert NgramIndex([*tokens[:8], 9, 2, 3]).continuation(2) == [80, 9]


def test_a_pair_that_is_everywhere_is_looked_up_in_bounded_time() -> None:
    rare = [5, 6, 7, 1, 1, 42]
    tokens = rare + [9, 1, 1] * 500 + rare[:5]
    index = NgramIndex(tokens)
    calls = 0

    def counted(candidate: int) -> int:
        nonlocal calls
        calls += 1
        return NgramIndex._agreement(index, candidate)

    index._agreement = counted  # type: ignore[method-assign]
    assert index.continuation(1) == [5]  # the occurrence that agrees longer lies too far back
    assert calls <= 16


def follow(guesser: NgramGuesser, tokens: list[int], text: list[int], least: float = 0.5, most: int = 8) -> list[int]:
    """Decode `text`, guessing, as the engine does; the number of guesses of each step."""
    counts = []
    place = 0
    while place < len(text):
        guess = guesser.guess(most, least)
        counts.append(len(guess))
        num_right = 0
        while num_right < len(guess) and text[place + num_right : place + num_right + 1] == [guess[num_right]]:
            num_right += 1
        tokens += text[place : place + num_right + 1]
        place += num_right + 1
    return counts


def test_text_that_repeats_is_guessed_ever_longer() -> None:
    text = random.Random(1).sample(range(1000), 200)
    tokens = list(text)
    counts = follow(NgramGuesser(tokens), tokens, text)
    assert max(counts) == 8
    assert len(counts) < 200 / 6


def test_text_that_does_not_repeat_is_not_guessed() -> None:
    # Every pair is known, and goes on in another way each time.
    rng = random.Random(2)
    tokens = [rng.randrange(6) for _ in range(300)]
    counts = follow(NgramGuesser(tokens), tokens, [rng.randrange(6) for _ in range(300)])
    assert sum(counts) < 30


def test_without_guesses_it_still_learns_when_they_would_be_right() -> None:
    text = random.Random(3).sample(range(1000), 60)
    tokens = list(text)
    guesser = NgramGuesser(tokens)
    assert set(follow(guesser, tokens, text, most=0)) == {0}
    assert guesser.likelihood > 0.99


@pytest.mark.parametrize("tokens", [[], [1], [1, 1], [1, 2, 3]])
def test_there_is_no_guess_without_an_earlier_occurrence(tokens: list[int]) -> None:
    assert NgramGuesser(tokens).guess(4, 0.0) == []
    assert NgramIndex([1, 1, 1]).continuation(3) == [1, 1, 1]

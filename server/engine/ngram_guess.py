"""Guesses how a sequence goes on: as it did the last time its newest tokens stood in it (prompt lookup decoding).

Sources: A. Saxena, "Prompt Lookup Decoding", 2023; the index is the chain of equal beginnings that deflate compressors
keep (RFC 1951, section 4), here of equal ends.
"""

from __future__ import annotations

from array import array

SHORTEST, LONGEST = 2, 5
"""Tokens that must agree for a guess, and from how many on a longer agreement is not looked for."""

# Bounds the work of one lookup where a pair of tokens is everywhere.
_MOST_CANDIDATES = 16
# One right or wrong token moves the estimate a quarter of the way: three in a row turn it around.
_LEARNING_RATE = 0.25
_FIRST_LIKELIHOOD = 0.5


class NgramIndex:
    """Where each pair of tokens stood before. A lookup costs the same however long the sequence is.

    tokens: only ever appended to; each new one is indexed once, at the lookup after it.
    """

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        # Places are ends: of the tokens up to, and without, position i. No pair ends at 0, which stands for "nowhere".
        self._latest: dict[tuple[int, int], int] = {}
        self._earlier = array("i", [0] * SHORTEST)  # by end of a pair: the same pair's end before that

    def continuation(self, count: int) -> list[int]:
        """`count` tokens that followed the longest known end of the sequence, most recent first; [] if it is new.

        A continuation that reaches the end of the sequence goes on with itself: the text is taken to be periodic.
        """
        self._index_new()
        begin = self._best_match()
        if begin == 0:
            return []
        guess = self._tokens[begin : begin + count]
        period = len(self._tokens) - begin
        while len(guess) < count:
            guess.append(guess[-period])
        return guess

    def _index_new(self) -> None:
        """All pairs but the last, which is what is looked up."""
        tokens, latest, earlier = self._tokens, self._latest, self._earlier
        for end in range(len(earlier), len(tokens)):
            pair = (tokens[end - 2], tokens[end - 1])
            earlier.append(latest.get(pair, 0))
            latest[pair] = end

    def _best_match(self) -> int:
        """The end of the earlier tokens that agree longest with the newest ones; 0 for none."""
        best = best_length = 0
        if len(self._tokens) <= SHORTEST:
            return best
        candidate = self._latest.get((self._tokens[-2], self._tokens[-1]), 0)
        for _ in range(_MOST_CANDIDATES):
            if candidate == 0 or best_length == LONGEST:
                break
            length = self._agreement(candidate)
            if length > best_length:
                best, best_length = candidate, length
            candidate = self._earlier[candidate]
        return best

    def _agreement(self, candidate: int) -> int:
        tokens = self._tokens
        length = SHORTEST
        while length < min(LONGEST, candidate) and tokens[candidate - 1 - length] == tokens[-1 - length]:
            length += 1
        return length


class NgramGuesser:
    """One sequence's guesses, and how likely they turned out to be right.

    Each guess is judged by the tokens that came, and where none was made, the one that would have been: so a sequence
    that stops repeating itself costs no computing, and one that begins to is noticed.
    """

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens
        self._index = NgramIndex(tokens)
        self._pending: list[int] = []  # the latest guess, for the positions from _pending_from on
        self._pending_from = 0
        self.likelihood = _FIRST_LIKELIHOOD

    def guess(self, most: int, least_likelihood: float) -> list[int]:
        """The next tokens: at most `most`, each right with at least this likelihood, those before it included."""
        self._learn()
        count, likelihood = 0, self.likelihood
        while count < most and likelihood >= least_likelihood:
            count += 1
            likelihood *= self.likelihood
        self._pending = self._index.continuation(max(count, 1))
        self._pending_from = len(self._tokens)
        return self._pending[:count]

    def _learn(self) -> None:
        for guessed, token in zip(self._pending, self._tokens[self._pending_from :], strict=False):
            self.likelihood += _LEARNING_RATE * ((guessed == token) - self.likelihood)
            if guessed != token:
                return

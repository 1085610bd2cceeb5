"""The kinds of questions by name, lmms-eval's."""

from __future__ import annotations

from enum import StrEnum


class RequestType(StrEnum):
    """Values of --request-type."""

    GENERATE_UNTIL = "generate_until"
    LOGLIKELIHOOD = "loglikelihood"
    MULTIPLE_CHOICE = "multiple_choice"
    MULTI_ROUND = "generate_until_multi_round"

    @property
    def is_likelihood(self) -> bool:
        """Nothing is generated: continuations that the data give are scored."""
        return self in (RequestType.LOGLIKELIHOOD, RequestType.MULTIPLE_CHOICE)


class ContinuationName(StrEnum):
    """Values of --continuation: what a choice's likelihood is the likelihood of."""

    TEXT = "text"
    LETTER = "letter"

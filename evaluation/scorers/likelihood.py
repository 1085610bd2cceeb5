"""Scores from log-probabilities: which choice is the likeliest, and whether a text would have been generated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evaluation.scorers.verdict import Verdict


def judge_likeliest(likelihoods: Sequence[Mapping[str, Any]], gold: str, *, normalized: bool) -> Verdict:
    """1 when the right choice has the largest log-probability; `normalized`: per character of its text.

    These are lm-evaluation-harness' acc and acc_norm. The first of equal ones is taken.
    """
    best = max(likelihoods, key=lambda one: one["logprob"] / (one["num_characters"] if normalized else 1))
    rule = "largest_logprob_per_character" if normalized else "largest_logprob"
    return Verdict(float(best["label"] == gold), best["label"], rule)


def judge_greedy(likelihoods: Sequence[Mapping[str, Any]]) -> Verdict:
    """1 when every token of the continuation is the most likely one, so that greedy decoding writes it."""
    (one,) = likelihoods
    return Verdict(float(one["is_greedy"]), f"{one['logprob']:.6f}", "greedy" if one["is_greedy"] else "not_greedy")


def perplexity_of(likelihoods: Iterable[Mapping[str, Any]]) -> float | None:
    """exp of the negative mean log-probability per token, over all rows together; None without tokens."""
    pairs = [(one["logprob"], one["num_tokens"]) for one in likelihoods]
    tokens = sum(count for _, count in pairs)
    if not tokens:
        return None
    # Beyond this exponent a float overflows; no model that has learned anything comes near.
    return math.exp(min(700.0, -math.fsum(logprob for logprob, _ in pairs) / tokens))

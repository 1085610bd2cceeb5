"""Speculative decoding: whose next tokens may be guessed, how many are worth computing, and which come true.

A sequence that decodes computes its newest token and guesses for the next ones in one step. Row by row the model says
what it would have chosen; as long as that is what was guessed, the next row is what a later step would have computed.
So the tokens are those of decoding one by one (Leviathan et al. 2023, with greedy acceptance).
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from server.engine.sequence import SampledToken, Sequence

# Rows whose arithmetic takes as long as reading the weights does, roughly: 10 to 30 on CPUs, more on GPUs.
_ROWS_PER_READ = 16


def may_guess(sequence: Sequence) -> bool:
    """Whether a choice depends on the tokens before it through the model's logits alone, so that rows are independent.

    A biased logit is the same at every position. Prompt log-probabilities must be out: their rows come first.
    """
    params = sequence.params
    return (
        params.is_greedy
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
        and sequence.matcher is None
        and sequence.num_output_tokens >= params.min_new_tokens
        and not sequence.wants_prompt_logprobs
    )


def most_useful(sequence: Sequence, max_model_len: int) -> int:
    """Guesses behind which a token can still follow before the sequence ends by length."""
    left = min(sequence.params.max_new_tokens - sequence.num_output_tokens, max_model_len - sequence.num_tokens)
    return max(0, left - 1)


def least_likelihood(num_sequences: int) -> float:
    """How likely a guess must be to pay, in a step of so many sequences.

    With r rows a step takes about 1 + r / _ROWS_PER_READ reads of the weights. A right guess saves its sequence's share
    of a step, a row costs 1 / _ROWS_PER_READ.
    """
    return num_sequences / (num_sequences + _ROWS_PER_READ)


def accepted(guess: Items[int], chosen: Items[SampledToken]) -> list[SampledToken]:
    """What the sequence goes on with: chosen[0], and each choice behind a guess that came true.

    chosen: one per row, that of the newest token and those of the guesses. A row without a choice ends the run: it
    comes again in the next step, as the first one.
    """
    run = [chosen[0]]
    for guessed, token in zip(guess, chosen[1:], strict=True):
        if guessed != run[-1].token_id or token.error is not None:
            break
        run.append(token)
    return run

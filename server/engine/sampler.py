"""Chooses the next token of every sequence in a step.

Per request: own parameters, own random numbers (one uniform number a token, from a generator seeded by the request),
and nothing that depends on the other rows of the step. Filters apply in the order temperature, top_k, top_p, min_p:
top_p counts the mass of what top_k left, min_p is relative to the most likely token. Everything is float32 or better.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from model_providers.kernels.library import Kernels
from server.engine.logits_processors import process_logits
from server.engine.sequence import SampledToken, Sequence
from server.request import SamplingParams, TokenLogprob

# Most filters leave far fewer tokens than this; only rows for which it is too few are sorted whole.
_CANDIDATES = 1024
_VOCABULARY_PIECE = 8192


class Sampler:
    """Holds the random state of the sequences that draw. kernels: None for torch's operators."""

    def __init__(self, kernels: Kernels | None = None) -> None:
        self._kernels = kernels
        self._random: dict[str, random.Random] = {}

    def forget(self, request_id: str) -> None:
        """Drop a finished sequence's random state."""
        self._random.pop(request_id, None)

    @torch.inference_mode()
    def sample(self, logits: Tensor, sequences: Items[Sequence]) -> list[SampledToken]:
        """logits (rows, vocabulary) float32, one row per sequence, in order.

        A row without a largest number (NaN, or all -inf) fails that sequence alone.
        """
        processed = process_logits(logits, sequences)
        largest, most_likely = processed.max(dim=-1) if self._kernels is None else self._kernels.largest(processed)
        tokens = most_likely.tolist()
        usable = list(map(math.isfinite, largest.tolist()))
        drawing = [row for row, sequence in enumerate(sequences) if usable[row] and not sequence.params.is_greedy]
        if drawing:
            for row, token in zip(
                drawing, self._draw(processed[drawing], [sequences[r] for r in drawing]), strict=True
            ):
                tokens[row] = token
        wanted = [sequence.params.logprobs for sequence in sequences]
        logprobs = _chosen_logprobs(logits, tokens, wanted, self._kernels)
        return [
            SampledToken(token, logprob) if ok else SampledToken(0, error="the model's logits are not finite")
            for token, logprob, ok in zip(tokens, logprobs, usable, strict=True)
        ]

    def _draw(self, logits: Tensor, sequences: Items[Sequence]) -> list[int]:
        params = [sequence.params for sequence in sequences]
        temperatures = torch.tensor([p.temperature for p in params], dtype=torch.float32, device=logits.device)
        scaled = logits / temperatures[:, None]
        uniform = torch.tensor([self._uniform(s) for s in sequences], dtype=torch.float64, device=logits.device)
        tokens = [0] * len(sequences)
        plain = [row for row, p in enumerate(params) if not _filters(p)]
        if plain:
            drawn = _inverse_cdf(scaled[plain].softmax(-1), uniform[plain])
            for row, token in zip(plain, drawn.tolist(), strict=True):
                tokens[row] = token
        filtered = [row for row, p in enumerate(params) if _filters(p)]
        if filtered:
            drawn_tokens = _draw_filtered(scaled[filtered], [params[row] for row in filtered], uniform[filtered])
            for row, token in zip(filtered, drawn_tokens, strict=True):
                tokens[row] = token
        return tokens

    def _uniform(self, sequence: Sequence) -> float:
        generator = self._random.get(sequence.request_id)
        if generator is None:
            generator = self._random[sequence.request_id] = random.Random(sequence.params.seed)
        return generator.random()


def _filters(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def _draw_filtered(scaled: Tensor, params: Items[SamplingParams], uniform: Tensor) -> list[int]:
    """Rows whose filters may reach beyond the first candidates are sorted whole; the row alone decides that."""
    vocabulary = scaled.shape[-1]
    few = min(_CANDIDATES, vocabulary)
    normaliser = scaled.logsumexp(-1, keepdim=True)
    values, indices = scaled.topk(few, dim=-1)
    kept, settled = _filter((values - normaliser).exp(), params, vocabulary)
    tokens: list[int] = indices.gather(1, _inverse_cdf(kept, uniform)[:, None])[:, 0].tolist()
    for row, is_settled in enumerate(settled):
        if not is_settled:
            values, indices = scaled[row].sort(descending=True)
            kept, _ = _filter((values - normaliser[row]).exp()[None], [params[row]], vocabulary)
            tokens[row] = int(indices[_inverse_cdf(kept, uniform[row : row + 1])])
    return tokens


def _filter(probabilities: Tensor, params: Items[SamplingParams], vocabulary: int) -> tuple[Tensor, list[bool]]:
    """Falling probabilities (rows, candidates) of the whole distribution -> what the filters leave, others 0.

    The second result says, per row, whether the candidates were enough to know.
    """
    device = probabilities.device
    candidates = probabilities.shape[-1]
    # The first candidate always stays, so no combination of filters leaves nothing.
    top_k = torch.tensor([p.top_k if p.top_k > 0 else vocabulary for p in params], device=device)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
    min_p = torch.tensor([p.min_p for p in params], dtype=torch.float64, device=device)
    position = torch.arange(candidates, device=device)
    in_top_k = position < top_k[:, None]
    after_top_k = torch.where(in_top_k, probabilities.double(), 0.0)
    limited = top_k <= candidates
    mass = torch.where(limited, after_top_k.sum(-1), 1.0)
    before = after_top_k.cumsum(-1) - after_top_k
    keep = in_top_k & (before < top_p[:, None] * mass[:, None])
    keep &= probabilities >= min_p[:, None] * probabilities[:, :1]
    keep[:, 0] = True
    settled = limited | ~keep[:, -1] | (candidates == vocabulary)
    return torch.where(keep, after_top_k, 0.0), settled.tolist()


def _inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The column at which the cumulative weight passes uniform * total: (rows, columns), (rows,) -> (rows,)."""
    cumulative = weights.double().cumsum(-1)
    column = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
    # Rounding may put the target at the very end; the last column with weight is the right one then.
    last = weights.shape[-1] - 1 - (weights.flip(-1) > 0).int().argmax(-1)
    return torch.minimum(column, last)


def _chosen_logprobs(
    logits: Tensor, tokens: list[int], wanted: Items[int | None], kernels: Kernels | None
) -> list[TokenLogprob | None]:
    """Log-probabilities under the model's own distribution, before penalties, temperature and filters."""
    rows = [row for row, count in enumerate(wanted) if count is not None]
    results: list[TokenLogprob | None] = [None] * len(tokens)
    if rows:
        counts = [wanted[row] or 0 for row in rows]
        chosen = token_logprobs(logits[rows], [tokens[r] for r in rows], counts, kernels)
        for row, logprob in zip(rows, chosen, strict=True):
            results[row] = logprob
    return results


def token_logprobs(
    logits: Tensor, tokens: Items[int], counts: Items[int], kernels: Kernels | None = None
) -> list[TokenLogprob]:
    """Of each row: the given token's log-probability, and the `count` most likely tokens with theirs.

    Where the given token is among the most likely, its number is the very same there. A token that cannot come has
    -inf, and in a row without a distribution (NaN, or all -inf) every number is NaN.
    """
    normaliser = (_logsumexp(logits) if kernels is None else kernels.log_sum_exp(logits))[:, None]
    chosen = logits.gather(1, torch.tensor(list(tokens), device=logits.device)[:, None]) - normaliser
    most = min(max(counts, default=0), logits.shape[-1])
    largest, indices = logits.topk(most, dim=-1)
    top_logprobs = largest - normaliser
    return [
        TokenLogprob(token, value, ids[:count], top[:count])
        for token, value, ids, top, count in zip(
            tokens, chosen[:, 0].tolist(), indices.tolist(), top_logprobs.tolist(), counts, strict=True
        )
    ]


def _logsumexp(logits: Tensor) -> Tensor:
    """(rows, vocabulary) -> (rows,), by pieces of the vocabulary, so that no exponentials of all of it are kept."""
    return torch.stack([piece.logsumexp(-1) for piece in torch.split(logits, _VOCABULARY_PIECE, dim=-1)]).logsumexp(0)

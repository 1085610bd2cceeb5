"""With kernels the sampler chooses the same tokens and gives the same log-probabilities as with torch's operators."""

from __future__ import annotations

import math

import pytest
import torch

from model_providers.kernels.library import load_kernels
from server.engine.sampler import Sampler, token_logprobs
from server.engine.sequence import Sequence
from server.request import EngineRequest, SamplingParams


def test_same_tokens_and_failures() -> None:
    torch.manual_seed(1)
    logits = torch.randn(6, 1003)[:, :1001]
    logits[2, 17] = math.nan
    logits[3] = -math.inf
    params = [SamplingParams(temperature=temperature, seed=7, logprobs=2) for temperature in (0, 0, 0, 0, 1, 0.5)]
    sequences = [
        Sequence(EngineRequest(request_id=str(row), prompt_token_ids=[0], params=own), 4)
        for row, own in enumerate(params)
    ]
    plain, fast = (Sampler(kernels).sample(logits, sequences) for kernels in (None, load_kernels("auto")))
    assert [token.token_id for token in fast] == [token.token_id for token in plain]
    assert [token.error for token in fast] == [token.error for token in plain]
    assert [row for row, token in enumerate(fast) if token.error] == [2, 3]


def test_same_logprobs() -> None:
    torch.manual_seed(2)
    logits = 5 * torch.randn(3, 20_001)
    logits[1, :9000] = -math.inf
    tokens = [5, 9001, 20_000]
    plain, fast = (token_logprobs(logits, tokens, [3, 0, 1], kernels) for kernels in (None, load_kernels("auto")))
    for expected, entry in zip(plain, fast, strict=True):
        assert entry.top_token_ids == expected.top_token_ids
        assert entry.logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert entry.top_logprobs == pytest.approx(expected.top_logprobs, abs=1e-5)

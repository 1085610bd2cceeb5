"""Sampling semantics: exact filters, own random numbers per request, isolation of failures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine import sampler as sampler_module
from server.engine.logits_processors import process_logits
from server.engine.sampler import Sampler, token_logprobs
from server.engine.sequence import Sequence
from server.request import EngineRequest, SamplingParams


def make(name: str = "a", prompt: list[int] | None = None, output: list[int] | None = None, **params: Any) -> Sequence:
    request = EngineRequest(request_id=name, prompt_token_ids=prompt or [0], params=SamplingParams(**params))
    sequence = Sequence(request, 4)
    sequence.token_ids += output or []
    return sequence


def draws(logits: torch.Tensor, count: int, **params: Any) -> list[int]:
    sampler, sequence = Sampler(), make(seed=1, **params)
    return [sampler.sample(logits[None], [sequence])[0].token_id for _ in range(count)]


def allowed(probabilities: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The slow truth: which tokens the filters leave, one at a time."""
    order = sorted(range(len(probabilities)), key=lambda i: -float(probabilities[i]))
    if top_k:
        order = order[:top_k]
    mass = sum(float(probabilities[i]) for i in order)
    kept, before = [], 0.0
    for i in order:
        if before >= top_p * mass:
            break
        kept.append(i)
        before += float(probabilities[i])
    largest = float(probabilities[order[0]])
    return {kept[0]} | {i for i in kept if float(probabilities[i]) >= min_p * largest}


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 9e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.tensor([0.1, 3.0, 2.9])
    assert set(draws(logits, 20, temperature=temperature)) == {1}


def test_a_huge_temperature_is_nearly_uniform_and_finite() -> None:
    assert set(draws(torch.tensor([0.0, 50.0, -50.0]), 200, temperature=1e30)) == {0, 1, 2}


def test_unfiltered_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    tokens = draws(logits, 4000)
    expected = logits.softmax(-1)
    for token in range(4):
        share = tokens.count(token) / len(tokens)
        error = math.sqrt(expected[token] * (1 - expected[token]) / len(tokens))
        assert abs(share - expected[token]) < 5 * error


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    top_k=st.sampled_from([0, 1, 2, 5, 30, 100]),
    top_p=st.sampled_from([0.01, 0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_filters_leave_exactly_what_their_definition_says(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(40) * 2
    expected = allowed(logits.double().softmax(-1), top_k, top_p, min_p)
    tokens = set(draws(logits, 150, top_k=top_k, top_p=top_p, min_p=min_p))
    assert tokens <= expected
    # Whatever has a fair chance must have come up in 150 draws.
    probabilities = logits.double().softmax(-1)
    mass = sum(float(probabilities[i]) for i in expected)
    assert {i for i in expected if float(probabilities[i]) / mass > 0.15} <= tokens


def test_rows_that_need_more_than_the_candidates_are_sorted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 300) * 0.1  # flat: 0.9 of the mass is far more than 16 tokens
    sequences = [make("a", top_p=0.9, seed=1), make("b", top_k=200, seed=2), make("c", top_p=0.01, seed=3)]
    whole = [Sampler().sample(logits[[i]], [s])[0].token_id for i, s in enumerate(sequences)]
    monkeypatch.setattr(sampler_module, "_CANDIDATES", 16)
    assert [t.token_id for t in Sampler().sample(logits, sequences)] == whole


def test_a_seeded_request_draws_the_same_whatever_runs_beside_it() -> None:
    torch.manual_seed(0)
    rows = torch.randn(5, 8, 50)
    alone_sampler, alone = Sampler(), make("x", seed=7, top_p=0.9)
    expected = [alone_sampler.sample(step[:1], [alone])[0].token_id for step in rows]
    crowd_sampler = Sampler()
    crowd = [make("x", seed=7, top_p=0.9), *(make(str(i), seed=i, temperature=0.5 * i, top_k=i) for i in range(7))]
    assert [crowd_sampler.sample(step, crowd)[0].token_id for step in rows] == expected


def test_equal_seeds_agree_and_different_seeds_do_not() -> None:
    logits = torch.zeros(1000)
    first, second = draws(logits, 20), draws(logits, 20)
    assert first == second
    sampler, other = Sampler(), make(seed=2)
    assert [sampler.sample(logits[None], [other])[0].token_id for _ in range(20)] != first


def test_a_row_of_nan_fails_alone() -> None:
    logits = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [3.0, 1.0], [-math.inf, -math.inf]])
    sequences = [make("a", temperature=0), make("b"), make("c", seed=1, temperature=0.01), make("d", temperature=0)]
    tokens = Sampler().sample(logits, sequences)
    assert [t.error is None for t in tokens] == [True, False, True, False]
    assert (tokens[0].token_id, tokens[2].token_id) == (1, 0)


def test_penalties_biases_and_their_scope() -> None:
    logits = torch.tensor([[2.0, -1.0, 1.0, 1.0, 0.0]])
    # 0 is in the prompt, 1 and 2 in the output (2 twice).
    sequence = make(
        prompt=[0], output=[1, 2, 2], repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25,
        logit_bias={4: 3.0}, temperature=0.0, logprobs=0,
    )  # fmt: skip
    processed = process_logits(logits, [sequence])
    torch.testing.assert_close(processed, torch.tensor([[1.0, -2.0 - 0.75, 0.5 - 1.0, 1.0, 3.0]]))
    [token] = Sampler().sample(logits, [sequence])
    assert token.token_id == 4
    # Log-probabilities are the model's own, before penalties.
    assert token.logprob is not None
    assert token.logprob.logprob == pytest.approx(float(logits.log_softmax(-1)[0, 4]))


def test_stop_tokens_cannot_come_before_the_minimum() -> None:
    logits = torch.tensor([[5.0, 1.0, 0.0]])
    params = {"temperature": 0.0, "min_new_tokens": 2, "stop_token_ids": (0,)}
    assert Sampler().sample(logits, [make(output=[1], **params)])[0].token_id == 1
    assert Sampler().sample(logits, [make(output=[1, 1], **params)])[0].token_id == 0


def test_logprobs_list_the_most_likely_first() -> None:
    logits = torch.tensor([[1.0, 3.0, -math.inf, 2.0]])
    [entry] = token_logprobs(logits, [2], [4])
    reference = logits.log_softmax(-1)[0]
    assert entry.top_token_ids == [1, 3, 0, 2]
    assert entry.top_logprobs[:3] == pytest.approx([float(reference[i]) for i in (1, 3, 0)])
    assert entry.logprob == entry.top_logprobs[3] == -math.inf


@pytest.mark.parametrize("num_alternatives", [0, 2])
def test_the_logprob_of_a_row_of_nan_is_nan(num_alternatives: int) -> None:
    [entry] = token_logprobs(torch.tensor([[1.0, math.nan, 0.0]]), [2], [num_alternatives])
    assert math.isnan(entry.logprob)
    assert all(map(math.isnan, entry.top_logprobs))


def test_the_chosen_token_s_logprob_is_the_very_number_in_the_list() -> None:
    torch.manual_seed(1)
    logits = torch.randn(6, 1000)
    best = logits.argmax(-1).tolist()
    for entry, token in zip(token_logprobs(logits, best, [1] * 6), best, strict=True):
        assert entry.top_token_ids == [token]
        assert entry.top_logprobs == [entry.logprob]


def test_logprobs_over_several_pieces_of_the_vocabulary() -> None:
    torch.manual_seed(2)
    logits = 5 * torch.randn(3, 2 * sampler_module._VOCABULARY_PIECE + 77)
    logits[1, : sampler_module._VOCABULARY_PIECE] = -math.inf
    tokens = [5, sampler_module._VOCABULARY_PIECE + 1, logits.shape[1] - 1]
    reference = logits.double().log_softmax(-1)
    for row, entry in enumerate(token_logprobs(logits, tokens, [3, 3, 3])):
        assert entry.logprob == pytest.approx(float(reference[row, tokens[row]]), abs=1e-5)
        assert entry.top_logprobs == pytest.approx(reference[row].topk(3).values.tolist(), abs=1e-5)

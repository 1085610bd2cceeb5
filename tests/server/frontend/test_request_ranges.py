"""Every field has limits, and an error names the field, the limit and the value."""

from __future__ import annotations

import math
from typing import Any

import pytest

from server.config import ServerConfig
from server.errors import RequestError
from server.frontend.request_builder import BuiltSample, PromptRequest, RequestBuilder
from server.ipc import EngineLimits

LIMITS = EngineLimits(
    vocab_size=1000, max_model_len=100, block_size=16, num_blocks=5, max_batched_tokens=64, max_running_requests=8
)
EOS = 7


def build(
    token_ids: list[int] | None = None,
    *,
    clamp: bool = False,
    default: int | None = 16,
    eos_token_ids: tuple[int, ...] = (EOS,),
    **given: Any,
) -> list[BuiltSample]:
    prompt = PromptRequest(
        token_ids=[1, 2, 3] if token_ids is None else token_ids,
        prompt_field="input_ids",
        sampling=given,
        field_of=lambda name: f"sampling_params.{name}",
        default_max_new_tokens=default,
        clamp=clamp,
    )
    return RequestBuilder(ServerConfig(), eos_token_ids).build(prompt, LIMITS)


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("temperature", -0.1, "at least 0 and at most 100"),
        ("temperature", 1e40, "at least 0 and at most 100"),
        ("temperature", math.nan, "at least 0 and at most 100"),
        ("top_p", 0.0, "greater than 0 and at most 1"),
        ("top_p", 1.5, "greater than 0 and at most 1"),
        ("top_p", math.nan, "greater than 0 and at most 1"),
        ("top_k", -2, "at least -1"),
        ("top_k", 2**31, "at most 2147483647"),
        ("min_p", 1.01, "at most 1"),
        ("presence_penalty", 2.1, "at most 2"),
        ("frequency_penalty", -3, "at least -2"),
        ("repetition_penalty", 0, "greater than 0"),
        ("seed", 2**63, "at most"),
        ("n", 0, "at least 1"),
        ("n", 10**9, "at most 64"),
        ("max_new_tokens", 0, "at least 1"),
        ("max_new_tokens", 10**9, "at most 77 tokens can be generated"),
        ("max_new_tokens", 10**4000, "at most 77 tokens can be generated"),
        ("min_new_tokens", 17, "at most 16"),
        ("stop_token_ids", [5, 1000], "0 to 999"),
        ("stop_token_ids", [-1], "0 to 999"),
        ("stop", [""], "1 to 1024 characters"),
        ("stop", ["a"] * 17, "at most 16"),
        ("stop", ["a" * 1025], "1 to 1024 characters"),
        ("logit_bias", {"1000": 1.0}, "0 to 999"),
        ("logit_bias", {"-1": 1.0}, "0 to 999"),
        ("logit_bias", {"x": 1.0}, "0 to 999"),
        ("logit_bias", {"3": 101.0}, "at most 100"),
    ],
)
def test_out_of_range_names_field_limit_and_value(field: str, value: Any, limit: str) -> None:
    with pytest.raises(RequestError) as caught:
        build(**{field: value})
    assert caught.value.status == 400
    assert caught.value.field is not None
    assert caught.value.field.startswith(f"sampling_params.{field}")
    assert f"sampling_params.{field}" in caught.value.message
    assert limit in caught.value.message
    assert len(caught.value.message) < 300


def test_token_ids_outside_the_vocabulary_are_named_with_their_place() -> None:
    with pytest.raises(RequestError, match=r"input_ids\[2\] must be a token id from 0 to 999 .* but is 1000"):
        build([1, 2, 1000])
    with pytest.raises(RequestError, match=r"input_ids\[0\] .* but is -1"):
        build([-1])


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="input_ids has no tokens"):
        build([])


def test_a_prompt_that_fits_nowhere_is_refused_with_both_counts() -> None:
    with pytest.raises(RequestError, match=r"has 80 tokens, but the limit \(the KV cache's size\) is 80"):
        build([1] * 80)


def test_prompt_and_answer_that_do_not_fit_are_refused_with_both_counts() -> None:
    with pytest.raises(RequestError, match=r"is 71 and the prompt has 10 tokens.*limit of 80 tokens"):
        build([1] * 10, max_new_tokens=71)


def test_what_nobody_asked_for_is_shortened_to_fit() -> None:
    assert build([1] * 75)[0].request.params.max_new_tokens == 5
    assert build([1] * 10, default=None)[0].request.params.max_new_tokens == 70
    assert build([1] * 10, clamp=True, max_new_tokens=32768)[0].request.params.max_new_tokens == 70


def test_each_of_n_samples_has_its_own_seed_and_id() -> None:
    samples = build(n=3, seed=40)
    assert [sample.request.params.seed for sample in samples] == [40, 41, 42]
    assert len({sample.request.request_id for sample in samples}) == 3
    assert [sample.request.params.seed for sample in build(n=2)] == [None, None]


def test_seeds_stay_in_range() -> None:
    seeds = [sample.request.params.seed for sample in build(n=2, seed=2**63 - 1)]
    assert seeds == [2**63 - 1, 0]
    assert 0 <= build(seed=-5)[0].request.params.seed < 2**63


def test_the_end_of_sequence_stops_unless_ignored() -> None:
    assert build(stop_token_ids=[9])[0].request.params.stop_token_ids == (9, EOS)
    assert build(stop_token_ids=[9], ignore_eos=True)[0].request.params.stop_token_ids == (9,)


def test_an_end_of_sequence_that_the_model_cannot_produce_is_left_out() -> None:
    built = build(eos_token_ids=(999, 1000), min_new_tokens=2)
    assert built[0].request.params.stop_token_ids == (999,)


def test_top_k_of_minus_one_or_the_whole_vocabulary_is_off() -> None:
    assert build(top_k=-1)[0].request.params.top_k == 0
    assert build(top_k=1000)[0].request.params.top_k == 0
    assert build(top_k=999)[0].request.params.top_k == 999

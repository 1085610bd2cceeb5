"""A sequence whose tokens come several at a time ends as one whose tokens come one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.frontend.detokenizer import DetokenizerFactory
from server.frontend.request_builder import BuiltSample, TextOptions
from server.frontend.sample import Sample, SamplePlace
from server.frontend.tokenizer import PromptTokenizer
from server.request import EngineRequest, RequestOutput, SamplingParams, TokenLogprob


@pytest.fixture(scope="session")
def tokenizer(tokenizer_directory: Path) -> PromptTokenizer:
    return PromptTokenizer.load(tokenizer_directory)


def outcome(
    tokenizer: PromptTokenizer, runs: list[list[int]], options: TextOptions, *, stop_token_id: int | None
) -> tuple[Any, ...]:
    """What is left of the sequence, and how often the engine was told to stop."""
    request = EngineRequest(request_id="a", prompt_token_ids=[5], params=SamplingParams(logprobs=0))
    stops: list[Sample] = []
    sample = Sample(
        BuiltSample(request, options),
        DetokenizerFactory(tokenizer),
        place=SamplePlace(0, 0, 0, 1),
        streaming=True,
        on_change=lambda sample: None,
        on_stop=stops.append,
    )
    for index, run in enumerate(runs):
        is_last = index == len(runs) - 1
        sample.put(
            RequestOutput(
                request_id="a",
                token_ids=run,
                logprobs=[TokenLogprob(token, -1.0, [], []) for token in run],
                finish_reason=("length" if stop_token_id is None else "stop") if is_last else None,
                stop_token_id=stop_token_id if is_last else None,
            )
        )
    assert sample.is_done
    return sample.text, sample.token_ids, sample.logprobs, sample.finish, len(stops)


@given(
    text=st.text("ab €😀", min_size=1, max_size=30),
    cuts=st.lists(st.integers(1, 6), min_size=40, max_size=40),
    stop=st.lists(st.text("ab €😀", min_size=1, max_size=3), max_size=3),
    include=st.booleans(),
    min_new_tokens=st.integers(0, 8),
    ends_by_token=st.booleans(),
)
def test_runs_of_any_length_end_alike(
    tokenizer: PromptTokenizer,
    text: str,
    cuts: list[int],
    stop: list[str],
    include: bool,
    min_new_tokens: int,
    ends_by_token: bool,
) -> None:
    [eos] = tokenizer.eos_token_ids
    tokens = [*tokenizer.encode(text), *([eos] if ends_by_token else [])]
    runs, begin = [], 0
    for cut in cuts:
        runs.append(tokens[begin : begin + cut])
        begin += cut
    runs.append(tokens[begin:])
    runs = [run for run in runs if run]
    options = TextOptions(stop=tuple(stop), include_stop_str_in_output=include, min_new_tokens=min_new_tokens)
    stop_token_id = eos if ends_by_token else None
    one_by_one = outcome(tokenizer, [[token] for token in tokens], options, stop_token_id=stop_token_id)
    *same, num_stops = outcome(tokenizer, runs, options, stop_token_id=stop_token_id)
    assert same == list(one_by_one[:-1])
    assert num_stops == one_by_one[-1]

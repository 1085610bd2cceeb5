"""Log-probabilities by the text of tokens, as lm-evaluation-harness reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.api.token_logprobs import TextOffsets, completion_logprobs
from server.frontend.detokenizer import DetokenizerFactory
from server.frontend.tokenizer import PromptTokenizer
from server.request import TokenLogprob

TEXTLESS, ALSO_TEXTLESS = 390, 391  # beyond the vocabulary: their text is empty, so they share it


@pytest.fixture(scope="module")
def detokenizers(tokenizer_directory: Path) -> DetokenizerFactory:
    return DetokenizerFactory(PromptTokenizer.load(tokenizer_directory))


def test_of_two_tokens_with_one_text_the_likelier_is_kept(detokenizers: DetokenizerFactory) -> None:
    entry = TokenLogprob(TEXTLESS, -3.0, [ALSO_TEXTLESS, 70], [-0.25, -1.5])
    lists = completion_logprobs([(TEXTLESS, entry)], 2, detokenizers, TextOffsets(detokenizers))
    assert lists["token_logprobs"] == [-3.0]
    assert lists["top_logprobs"] == [{"": -0.25, "d": -1.5}]  # so the token does not look like the greedy choice


def test_the_token_itself_is_always_there_with_the_very_same_number(detokenizers: DetokenizerFactory) -> None:
    value = -0.1 - 1e-16
    likeliest = TokenLogprob(70, value, [70], [value])
    unlikely = TokenLogprob(71, -9.75, [70, 72], [-0.5, -1.0])
    lists = completion_logprobs([(70, likeliest), (71, unlikely)], 1, detokenizers, TextOffsets(detokenizers))
    assert lists["top_logprobs"] == [{"d": value}, {"d": -0.5, "e": -9.75}]
    assert lists["token_logprobs"][0] == max(lists["top_logprobs"][0].values())
    assert lists["token_logprobs"][1] != max(lists["top_logprobs"][1].values())


def test_offsets_count_characters_across_calls(detokenizers: DetokenizerFactory, tokenizer_directory: Path) -> None:
    token_ids = PromptTokenizer.load(tokenizer_directory).encode("a😀b")
    offsets = TextOffsets(detokenizers)
    assert [offsets.next(token_id) for token_id in token_ids] == [0, 1, 1, 1, 1, 2]

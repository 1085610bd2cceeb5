"""Incremental decoding: the pieces joined are the text of the whole, characters are never cut, prompts never leak."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from server.frontend.detokenizer import Detokenizer, DetokenizerFactory
from server.frontend.tokenizer import PromptTokenizer


@pytest.fixture(scope="session")
def byte_level(tokenizer_directory: Path) -> PromptTokenizer:
    return PromptTokenizer.load(tokenizer_directory)


@pytest.fixture(scope="session")
def sentencepiece_style() -> PromptTokenizer:
    """Metaspace words with byte fallback, as Llama 2 has them: the first word loses its space when decoded alone."""
    words = ["▁hello", "▁world", "▁", "lo", "wor", "a", "<s>"]
    vocabulary = {piece: i for i, piece in enumerate([f"<0x{byte:02X}>" for byte in range(256)] + words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PromptTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>"))


def decode_in_steps(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(st.text(max_size=40))
def test_text_survives_token_by_token(byte_level: PromptTokenizer, text: str) -> None:
    detokenizer = DetokenizerFactory(byte_level).create([], skip_special_tokens=True)
    pieces = decode_in_steps(detokenizer, byte_level.encode(text))
    assert "".join(pieces) == text


@given(st.lists(st.integers(0, 399), max_size=30), st.booleans())
def test_any_tokens_decode_as_the_library_decodes_them_at_once(
    byte_level: PromptTokenizer, token_ids: list[int], skip: bool
) -> None:
    pieces = decode_in_steps(DetokenizerFactory(byte_level).create([], skip_special_tokens=skip), token_ids)
    assert "".join(pieces) == byte_level.backend.decode(token_ids, skip_special_tokens=skip)


def test_a_character_comes_whole(byte_level: PromptTokenizer) -> None:
    token_ids = byte_level.encode("😀!")
    assert len(token_ids) == 5
    pieces = decode_in_steps(DetokenizerFactory(byte_level).create([], skip_special_tokens=True), token_ids)
    assert pieces == ["", "", "", "😀", "!", ""]


def test_half_a_character_at_the_end_is_flushed_as_a_replacement(byte_level: PromptTokenizer) -> None:
    token_ids = byte_level.encode("ok😀")[:-1]
    pieces = decode_in_steps(DetokenizerFactory(byte_level).create([], skip_special_tokens=True), token_ids)
    assert pieces[-1] == "�"
    assert "�" not in "".join(pieces[:-1])


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece_style"])
def test_half_a_character_at_the_prompts_end_does_not_leak(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: PromptTokenizer = request.getfixturevalue(name)
    prompt = [tokenizer.backend.token_to_id(token) for token in cut_emoji(tokenizer)]
    detokenizer = DetokenizerFactory(tokenizer).create(prompt, skip_special_tokens=True)
    assert "".join(decode_in_steps(detokenizer, [tokenizer.backend.token_to_id("a")])) == "a"


def cut_emoji(tokenizer: PromptTokenizer) -> list[str]:
    """The first three of the four bytes of an emoji, as tokens."""
    whole = tokenizer.backend.encode("a😀", add_special_tokens=False).tokens
    return whole[:-1]


def test_a_word_that_continues_the_prompt_keeps_its_space(sentencepiece_style: PromptTokenizer) -> None:
    hello, world = (sentencepiece_style.backend.token_to_id(token) for token in ("▁hello", "▁world"))
    pieces = decode_in_steps(
        DetokenizerFactory(sentencepiece_style).create([hello], skip_special_tokens=True), [world, world]
    )
    assert "".join(pieces) == " world world"


@given(token_ids=st.lists(st.integers(0x20, 0x7E) | st.integers(256, 261), max_size=20))
def test_window_decoding_equals_decoding_at_once(sentencepiece_style: PromptTokenizer, token_ids: list[int]) -> None:
    detokenizer = DetokenizerFactory(sentencepiece_style).create([], skip_special_tokens=True)
    pieces = decode_in_steps(detokenizer, token_ids)
    assert "".join(pieces) == sentencepiece_style.backend.decode(token_ids, skip_special_tokens=True)


def test_undecodable_tokens_are_not_held_for_ever(sentencepiece_style: PromptTokenizer) -> None:
    detokenizer = DetokenizerFactory(sentencepiece_style).create([], skip_special_tokens=True)
    pieces = [detokenizer.push(0xFF) for _ in range(100)]
    assert sum(map(len, pieces)) > 80


def test_the_tokenizers_alphabet_is_the_one_in_the_table(byte_level: PromptTokenizer) -> None:
    described = json.loads(byte_level.backend.to_str())["model"]["vocab"]
    table = DetokenizerFactory(byte_level)
    single = {table.token_bytes(i) for token, i in described.items() if len(token) == 1}
    assert single == {bytes([byte]) for byte in range(256)}


def test_special_tokens_are_shown_to_whom_they_are_text(byte_level: PromptTokenizer) -> None:
    start, end = (byte_level.backend.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
    factory = DetokenizerFactory(byte_level)
    for shown, text in [((), ""), ((start,), "<|im_start|>"), ((end,), "<|im_end|>"), ((), "")] * 2:
        detokenizer = factory.create([], skip_special_tokens=True, shown=frozenset(shown))
        assert "".join(decode_in_steps(detokenizer, [start, end])) == text

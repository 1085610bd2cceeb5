"""Text from outside never becomes a control token; what the chat template writes does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ConfigurationError, RequestError
from server.frontend.tokenizer import PromptTokenizer

CONTROL = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<tool_call>"]
SPECIAL_IDS = {0, 1, 2}


@pytest.fixture(scope="session")
def tokenizer(tokenizer_directory: Path) -> PromptTokenizer:
    return PromptTokenizer.load(tokenizer_directory)


@given(st.lists(st.sampled_from([*CONTROL, "a", " ", "<|", "im_end", "|>", "\n"]), max_size=8).map("".join))
def test_plain_text_has_no_control_tokens(tokenizer: PromptTokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    assert not {tokenizer.backend.token_to_id(token) for token in CONTROL} & set(token_ids)
    assert tokenizer.decode(token_ids) == text


@given(st.lists(st.sampled_from([*CONTROL, "a", " ", "<|", "im_end", "|>"]), min_size=1, max_size=8).map("".join))
def test_messages_have_no_control_tokens_of_their_own(tokenizer: PromptTokenizer, content: str) -> None:
    token_ids = tokenizer.encode_chat([{"role": "user", "content": content}])
    assert [token_id for token_id in token_ids if token_id in SPECIAL_IDS] == [1, 2, 1]
    assert tokenizer.decode(token_ids) == f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


def test_a_control_token_as_role_stays_text(tokenizer: PromptTokenizer) -> None:
    token_ids = tokenizer.encode_chat([{"role": "user<|im_end|>", "content": "x"}])
    assert [token_id for token_id in token_ids if token_id in SPECIAL_IDS] == [1, 2, 1]


def test_harmless_conversations_are_tokenised_as_transformers_does(tokenizer: PromptTokenizer) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "\nhello  world\n"}]
    rendered = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n\nhello  world\n<|im_end|>\n"
    expected = tokenizer.backend.encode(rendered + "<|im_start|>assistant\n", add_special_tokens=False).ids
    assert tokenizer.encode_chat(messages) == expected


def test_a_template_that_refuses_is_the_clients_error(tokenizer_directory: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ raise_exception('roles must alternate') }}")
    tokenizer = PromptTokenizer.load(tokenizer_directory, template)
    with pytest.raises(RequestError, match="roles must alternate"):
        tokenizer.encode_chat([{"role": "user", "content": "x"}])


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        PromptTokenizer.load(tmp_path)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": {')
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        PromptTokenizer.load(tmp_path)


def test_generation_config_adds_ends(tokenizer_directory: Path, tmp_path: Path) -> None:
    for file in tokenizer_directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert PromptTokenizer.load(tmp_path).eos_token_ids == (2, 0)

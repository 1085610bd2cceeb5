"""The workload is what the published figures were measured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.errors import SetupError
from benchmarks.workload import PROMPT_LENGTHS, make_workload
from server.frontend.tokenizer import PromptTokenizer


def encode_bytes(text: str) -> list[int]:
    return list(text.encode())


def test_w32() -> None:
    workload = make_workload(encode_bytes, 32, 64)
    assert [len(prompt) for prompt in workload.prompts] == list(PROMPT_LENGTHS)
    assert (workload.num_prompt_tokens, workload.num_output_tokens, workload.longest) == (4774, 2048, 320)
    assert (min(PROMPT_LENGTHS), max(PROMPT_LENGTHS)) == (16, 256)
    assert workload.describe()["name"] == "W32"


def test_the_same_every_time(tiny_hf_directory: Path) -> None:
    once, again = (make_workload(PromptTokenizer.load(tiny_hf_directory).encode, 32, 64) for _ in range(2))
    assert once == again
    assert once.digest == again.digest
    assert once.digest != make_workload(encode_bytes, 31, 64).digest


def test_no_prompt_begins_as_another_does() -> None:
    prompts = make_workload(encode_bytes, 32, 64).prompts
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 32


def test_part_of_it_is_named_custom() -> None:
    workload = make_workload(encode_bytes, 3, 8)
    assert [len(prompt) for prompt in workload.prompts] == [40, 251, 244]
    assert workload.describe()["name"] == "custom"


def test_a_tokenizer_that_makes_too_few_tokens_is_refused() -> None:
    with pytest.raises(SetupError, match="makes 100 of it"):
        make_workload(lambda text: [1] * 100, 32, 64)

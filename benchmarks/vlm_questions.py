"""The work of `bench vlm`: easy-vqa's first held-out questions as token ids, with the picture each is about."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.errors import SetupError
from benchmarks.messages import Pictures
from evaluation.datasets.easy_vqa import installed_split, parse_directory
from evaluation.errors import DatasetError

TOKENS_PER_IMAGE = 16
MAX_NEW_TOKENS = 3
"""What a trained model says: the mark before an answer, one word, and the end."""


@dataclass(frozen=True)
class VlmWorkload:
    """prompts: the picture's places, then the question."""

    prompts: list[list[int]]
    pictures: Pictures

    def describe(self) -> dict[str, Any]:
        """For the result: what was asked."""
        return {
            "name": "easy-vqa:test",
            "num_prompts": len(self.prompts),
            "num_pictures": len(self.pictures.files),
            "prompt_tokens": sum(map(len, self.prompts)),
            "max_new_tokens": MAX_NEW_TOKENS,
            "prompts_sha256": hashlib.sha256(repr(self.prompts).encode()).hexdigest(),
        }


def make_vlm_workload(encode: Callable[[str], list[int]], image_token_id: int, num_questions: int) -> VlmWorkload:
    """The first questions of the test split. Raises SetupError when the package easy-vqa is missing."""
    try:
        directory = installed_split("easy-vqa:test")
        items = parse_directory(directory)[0][:num_questions]
    except DatasetError as error:
        raise SetupError(str(error)) from error
    files = [str(directory / "images" / f"{item.columns['image_id']}.png") for item in items]
    numbers = {file: number for number, file in enumerate(dict.fromkeys(files))}
    return VlmWorkload(
        prompts=[[image_token_id] * TOKENS_PER_IMAGE + encode(item.question) for item in items],
        pictures=Pictures(
            files=list(numbers),
            of_prompt=[numbers[file] for file in files],
            tokens_per_image=TOKENS_PER_IMAGE,
        ),
    )

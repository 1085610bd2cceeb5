"""W32: 32 prompts of mixed length, 64 new tokens each, greedy, the end of sequence ignored.

The prompts are cut from the sources of the standard library, so they are on every machine and their tokens are as
uneven as those of real text. They are the same for the same tokenizer and Python release; `digest` tells.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.errors import SetupError

PROMPT_LENGTHS = (
    *(40, 251, 244, 145, 80, 26, 243, 165, 256, 209, 138, 16, 210, 82, 248, 228),
    *(88, 174, 123, 51, 216, 119, 220, 107, 93, 140, 71, 232, 51, 114, 248, 146),
)
MAX_NEW_TOKENS = 64

_SOURCES = ("argparse", "doctest", "inspect", "pydoc", "tarfile", "typing")


@dataclass(frozen=True)
class Workload:
    """Every prompt gets exactly `max_new_tokens` tokens."""

    prompts: list[list[int]]
    max_new_tokens: int

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        return len(self.prompts) * self.max_new_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence at its end."""
        return max(map(len, self.prompts)) + self.max_new_tokens

    @property
    def digest(self) -> str:
        """Of the prompts; equal digests mean equal work."""
        return hashlib.sha256(repr(self.prompts).encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """For the result: what was asked."""
        lengths = tuple(map(len, self.prompts))
        is_w32 = lengths == PROMPT_LENGTHS and self.max_new_tokens == MAX_NEW_TOKENS
        return {
            "name": "W32" if is_w32 else "custom",
            "num_prompts": len(self.prompts),
            "prompt_tokens": self.num_prompt_tokens,
            "max_new_tokens": self.max_new_tokens,
            "prompts_sha256": self.digest,
        }


def make_workload(encode: Callable[[str], list[int]], num_prompts: int, max_new_tokens: int) -> Workload:
    """The first `num_prompts` of W32, cut at even distances from one long text so that no two share a beginning.

    encode: text to token ids, as the served model's tokenizer does it. Raises SetupError when the text gives too few.
    """
    return Workload(cut_prompts(encode, PROMPT_LENGTHS)[:num_prompts], max_new_tokens)


def cut_prompts(encode: Callable[[str], list[int]], lengths: Sequence[int]) -> list[list[int]]:
    """Prompts of these lengths, as `make_workload` cuts them. Raises SetupError when the text gives too few."""
    token_ids = encode("".join(library_sources()))
    stride = len(token_ids) // len(lengths)
    if stride < max(lengths):
        raise SetupError(
            f"the workload needs {len(lengths) * max(lengths)} tokens of text, but this checkpoint's tokenizer makes "
            f"{len(token_ids)} of it"
        )
    return [token_ids[i * stride : i * stride + length] for i, length in enumerate(lengths)]


def library_sources() -> list[str]:
    """Texts of some of the standard library's modules. Raises SetupError where they are not installed."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [library / f"{module}.py" for module in _SOURCES]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise SetupError(f"the prompts are cut from the standard library's sources, of which {missing} are missing")
    return [file.read_text(encoding="utf-8") for file in files]

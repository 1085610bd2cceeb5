"""What the command line of `megaserve bench` asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.workload import MAX_NEW_TOKENS, PROMPT_LENGTHS

HUGGING_FACE_BATCH_SIZES = (16, 32)
"""Static batches that `generate` is measured with; the better one is compared with."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """load: a checkpoint, None for SmolLM2. dtype, threads: None leaves them to `serve`'s own defaults.

    extra: more of `serve`'s arguments. quiet_wait: seconds to wait before each repetition, at most, for other
    processes to pause. compare_hf, hf_directory belong to `offline`, concurrency to `http`, num_questions to
    `vlm`, num_images to `images`. peers, only belong to `compare` (which also has hf_directory and concurrency),
    num_choice_questions to `prefix`, max_batch, max_context and draw to `sweep`.
    """

    load: Path | None = None
    dtype: str | None = None
    threads: int | None = None
    repetitions: int = 3
    num_prompts: int = len(PROMPT_LENGTHS)
    max_new_tokens: int = MAX_NEW_TOKENS
    quiet_wait: float = 20.0
    json: Path | None = None
    extra: tuple[str, ...] = ()
    compare_hf: bool = False
    hf_directory: Path | None = None
    concurrency: int = 16
    num_questions: int = 2000
    num_images: int = 5000
    peers: tuple[str, ...] = ()
    only: str | None = None
    num_choice_questions: int = 200
    max_batch: int = 256
    max_context: int = 8192
    draw: Path | None = None

    def serve_arguments(self, checkpoint: Path, *, prefix_caching: bool = False) -> list[str]:
        """The prefix cache is off unless the work is made of shared beginnings."""
        arguments = ["--load", str(checkpoint), *(() if prefix_caching else ("--no-prefix-caching",))]
        if self.dtype is not None:
            arguments += ["--dtype", self.dtype]
        if self.threads is not None:
            arguments += ["--threads", str(self.threads)]
        return [*arguments, *self.extra]

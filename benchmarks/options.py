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
    processes to pause. compare_hf, hf_directory belong to `offline`, concurrency to `http`.
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

    def serve_arguments(self, checkpoint: Path) -> list[str]:
        """The prefix cache is off: in the second repetition it would hold all of the prompts."""
        arguments = ["--load", str(checkpoint), "--no-prefix-caching"]
        if self.dtype is not None:
            arguments += ["--dtype", self.dtype]
        if self.threads is not None:
            arguments += ["--threads", str(self.threads)]
        return [*arguments, *self.extra]

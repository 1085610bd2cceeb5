"""The engine's arguments, resolved as `megaserve serve` resolves them: once, by rank 0, for everybody."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluation.errors import SetupError
from evaluation.offline.ranks import Ranks
from server.config import EngineConfig, ResolvedDocument
from server.process_lifetime import bound_command

_DOCUMENT = "document"
_PROBLEMS = ("megaserve: error:", "conflict:")
_NO_LIMIT_SECONDS = "1000000"


def engine_argv(load: str, tensor_parallel_size: int, arguments: Sequence[str]) -> list[str]:
    """The engine's command line: what this mode needs first, so that the user's `arguments` win.

    Replicas on one machine share its cores and its memory. The client alone limits the time of a request.
    """
    ranks_here = max(tensor_parallel_size, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    fraction = EngineConfig.kv_cache_memory_fraction * tensor_parallel_size / ranks_here
    return [
        *("--load", load, "--tensor-model-parallel-size", str(tensor_parallel_size)),
        *("--threads", str(max(1, len(os.sched_getaffinity(0)) // ranks_here))),
        *("--kv-cache-memory-fraction", f"{fraction:g}", "--request-timeout", _NO_LIMIT_SECONDS),
        *("--log-level", "warning", *arguments),
    ]


def resolved_document(ranks: Ranks, argv: Sequence[str], file: Path) -> ResolvedDocument:
    """The document, which is in `file` too afterwards. SetupError when the arguments do not allow a start."""
    if not ranks.is_first:
        file.write_text(ranks.receive(_DOCUMENT))
        return ResolvedDocument.read(file)
    _resolve(argv, file, ranks.tensor_parallel_size)
    document = ResolvedDocument.read(file)
    if (size := document.values["tensor_model_parallel_size"]) != ranks.tensor_parallel_size:
        raise SetupError(f"give --tensor-model-parallel-size {size} as a flag of the evaluation, not of the engine")
    ranks.publish(_DOCUMENT, document.to_json().decode())
    return document


def _resolve(argv: Sequence[str], file: Path, tensor_parallel_size: int) -> None:
    """Run the resolver, which sees a world of one replica. SetupError with what it says is wrong."""
    command = [sys.executable, "-m", "server.arguments.resolver", "--out", str(file), "--", *argv]
    environment = os.environ | {"WORLD_SIZE": str(tensor_parallel_size)}
    done = subprocess.run(bound_command(command), check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith(_PROBLEMS)]
        raise SetupError("\n".join(said) or f"the engine's arguments cannot be resolved:\n{done.stderr[-2000:]}")

"""What to measure: a checkpoint, and the arguments `megaserve serve` would start it with."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import SetupError
from benchmarks.prompts import encoder_of
from benchmarks.workload import Workload, make_workload
from model_providers.checkpoint.smollm2 import smollm2_hf_directory
from server.config import ResolvedDocument
from server.process_lifetime import bound_command

_RESOLVER_TIMEOUT = 300.0


def checkpoint_or_smollm2(load: Path | None) -> Path:
    """`load`, or SmolLM2, which is built when this machine does not have it yet. Raises SetupError."""
    if load is None:
        return _smollm2()
    if not load.is_dir():  # the resolver would find out, too, seconds later
        raise SetupError(f"--load {load}: no such directory")
    return load


def _smollm2() -> Path:
    """Built in a process of its own: torch and its threads stay out of this one, which measures others."""
    command = [sys.executable, "-m", "model_providers.checkpoint.smollm2"]
    done = subprocess.run(bound_command(command), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SetupError("SmolLM2 could not be built, for the reason above; --load DIR measures another checkpoint")
    return Path(done.stdout.splitlines()[-1])


def hugging_face_directory(load: Path | None, given: Path | None) -> Path:
    """The same weights for Hugging Face's implementation. Raises SetupError when nobody said where they are."""
    if given is None and load is not None:
        raise SetupError(
            "comparing needs the Hugging Face directory of the model in --load: --compare-hf DIR, or --hf-directory DIR"
        )
    directory = given or smollm2_hf_directory()
    if not (directory / "config.json").is_file():
        raise SetupError(f"{directory}: no Hugging Face model there (config.json is missing)")
    return directory


def resolve_serve_arguments(arguments: Sequence[str]) -> ResolvedDocument:
    """As `megaserve serve` resolves them, in a process of its own. Raises SetupError with what the resolver said."""
    with tempfile.TemporaryDirectory(prefix="megaserve-bench-") as directory:
        file = Path(directory) / "document.json"
        command = [sys.executable, "-m", "server.arguments.resolver", "--out", str(file), "--", *arguments]
        done = subprocess.run(
            bound_command(command), capture_output=True, text=True, timeout=_RESOLVER_TIMEOUT, check=False
        )
        if done.returncode != 0:
            raise SetupError(resolver_errors(done.stderr))
        if not file.is_file():
            raise SetupError("the arguments after -- print something instead of starting a server; leave them out")
        return ResolvedDocument.read(file)


def workload_for(document: ResolvedDocument, num_prompts: int, max_new_tokens: int) -> Workload:
    """W32 in the checkpoint's own tokens. Raises SetupError when the model's sequences end before the workload's."""
    workload = make_workload(encoder_of(document), num_prompts, max_new_tokens)
    most = document.values["max_model_len"]
    if workload.longest > most:
        raise SetupError(
            f"the workload's longest sequence has {workload.longest} tokens, the model takes {most}; "
            "lower --max-new-tokens or --num-prompts"
        )
    return workload


def resolver_errors(stderr: str) -> str:
    """The resolver's own words, without the tables and library notices that surround them."""
    prefixes = ("megaserve: error: ", "conflict: ")
    lines = [line for line in stderr.splitlines() if line.startswith(prefixes)]
    return "\n".join(line.removeprefix(prefixes[0]) for line in lines) or stderr.strip()[-2000:]

"""What the resolver process does: read the sources, resolve, print or write the result."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from model_providers.checkpoint.peek import CheckpointPeek, peek
from model_providers.errors import CheckpointError
from server.arguments.classification import classify
from server.arguments.conflicts import REQUIRED
from server.arguments.derive import Machine
from server.arguments.option_groups import flag_of
from server.arguments.parser import ServeParser, TypedArguments
from server.arguments.preparse import preparse
from server.arguments.ranges import check_ranges
from server.arguments.resolve import NO_EFFECT, resolve, unknown_checkpoint_args
from server.arguments.tables import print_conflicts, print_tables, provenance_lines
from server.arguments.tokenizer_lookup import FoundTokenizer, TokenizerNotFoundError, find_tokenizer
from server.config import ResolvedDocument
from server.errors import ConfigurationError

EXIT_CONFLICTS = 3


def run(argv: Sequence[str], *, out: Path | None, stdout: TextIO) -> int:
    """Resolve `argv`, what followed `megaserve serve`, and print or write what was asked for -> the exit status.

    Raises ConfigurationError, and ModelProviderError for the checkpoint.
    """
    wants = preparse(argv)
    parser = ServeParser()
    if wants.help or wants.help_all:
        print(parser.help_text(everything=wants.help_all), file=stdout)
        return 0
    typed = parser.parse(argv)
    document, tokenizer_problem = _read_and_resolve(typed, parser.defaults)
    shown = document.without_secrets()
    if wants.print_resolved_args == "json":
        print(shown.to_json().decode(), file=stdout)
    else:
        print_tables(shown, stdout if wants.print_resolved_args else sys.stderr)
    if wants.print_resolved_args == "table":
        print_conflicts(shown, stdout)
    if not wants.print_resolved_args:
        print(*provenance_lines(shown), sep="\n", file=sys.stderr)
    if out is not None:
        _write_atomically(out, document.to_json())
    if document.conflicts:
        print_conflicts(document, sys.stderr)
        return EXIT_CONFLICTS
    if tokenizer_problem and not wants.print_resolved_args:
        raise ConfigurationError(f"{tokenizer_problem}; name one with --tokenizer-model")
    return 0


def _read_and_resolve(typed: TypedArguments, defaults: Mapping[str, Any]) -> tuple[ResolvedDocument, str]:
    """The document, and why no tokenizer can be used (empty when one can)."""
    given = {**typed.config_file, **typed.command_line}
    check_ranges(given)
    if given.get("load") is None:
        raise ConfigurationError("--load DIR is missing: which checkpoint to serve")
    checkpoint = peek(Path(given["load"]), given.get("ckpt_step"))
    _require_args(checkpoint, given)
    tokenizer = tokenizer_of(checkpoint, given)
    document = resolve(typed, defaults, checkpoint, tokenizer, this_machine())
    _warn(document, unknown_checkpoint_args(checkpoint, document))
    return document, "" if isinstance(tokenizer, FoundTokenizer) else str(tokenizer)


def _require_args(checkpoint: CheckpointPeek, given: Mapping[str, Any]) -> None:
    """A checkpoint without args can be served when its arguments are typed; guessed they are never."""
    if checkpoint.has_args or any(given.get(name) is not None for name in REQUIRED):
        return
    hint = ""
    if (checkpoint.path / "run_config.yaml").exists():
        hint = " (it was written by Megatron-Bridge; export it from there to Megatron-LM's format)"
    flags = ", ".join(flag_of(name) for name in REQUIRED)
    message = f"holds no args{hint}, so the model is unknown; describe it by {flags} and what else it was trained with"
    raise CheckpointError(checkpoint.args_file, message)


def tokenizer_of(checkpoint: CheckpointPeek, given: Mapping[str, Any]) -> FoundTokenizer | TokenizerNotFoundError:
    saved = checkpoint.args.get("tokenizer_model")
    try:
        return find_tokenizer(
            typed=given.get("tokenizer_model"),
            saved=None if saved is None else str(saved),
            load=Path(given["load"]),
            iteration_directory=checkpoint.path,
        )
    except TokenizerNotFoundError as error:
        return error


def this_machine() -> Machine:
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and "WORLD_SIZE" in os.environ
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        has_gpu=torch.cuda.is_available(),  # asks the driver; no context is made
        world_size=int(os.environ["WORLD_SIZE"]) if under_torchrun else None,
    )


def _warn(document: ResolvedDocument, unknown: list[str]) -> None:
    for a in document.arguments:
        typed = a.command_line is not None or a.config_file is not None
        if typed and classify(a.arg).effect == "none":
            print(f"megaserve: warning: {flag_of(a.arg)} has {NO_EFFECT}: {classify(a.arg).reason}", file=sys.stderr)
    if unknown:
        names = ", ".join(unknown)
        print(f"megaserve: note: the checkpoint's args have names unknown here, not used: {names}", file=sys.stderr)


def _write_atomically(path: Path, data: bytes) -> None:
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError as error:
        raise ConfigurationError(f"--out {path}: cannot be written ({error.strerror})") from error

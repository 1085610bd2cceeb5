"""`megaserve inspect DIR [--json]`: what a checkpoint says about itself. No weights are read, nothing in it is run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from model_providers.checkpoint.peek import CheckpointPeek, TensorInfo, list_tensors, peek
from model_providers.checkpoint.peek_values import json_value
from model_providers.errors import ModelProviderError
from server.arguments.detect import ModelKind, detect_model_kind
from server.arguments.resolver import EXIT_ERROR, library_output_to_stderr, quiet_imports

_GIB = 1024**3


def main(argv: Sequence[str]) -> int:
    """Print it -> exit status 0, or 2 with one line on standard error when the checkpoint cannot be read."""
    parser = argparse.ArgumentParser(
        prog="megaserve inspect",
        description="Show a checkpoint's kind, training arguments and tensors, without loading weights.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="checkpoint, or one iteration's directory")
    parser.add_argument("--ckpt-step", type=int, help="iteration to show; default: the one the tracker file names")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(list(argv))
    try:
        with library_output_to_stderr(), quiet_imports():  # enumerations in the args are Megatron's
            checkpoint = peek(given.directory, given.ckpt_step)
            tensors = list_tensors(checkpoint)
    except ModelProviderError as error:
        print(f"megaserve: error: {error}", file=sys.stderr)
        return EXIT_ERROR
    kind = detect_model_kind(checkpoint.args) if checkpoint.has_args else None
    if given.json:
        print(json.dumps(_document(checkpoint, kind, tensors)))
    else:
        _print_tables(checkpoint, kind, tensors)
    return 0


def _document(checkpoint: CheckpointPeek, kind: ModelKind | None, tensors: list[TensorInfo]) -> dict[str, Any]:
    return {
        "kind": kind.kind if kind else None,
        "reasons": _reasons(checkpoint, kind),
        "checkpoint": {
            "path": str(checkpoint.path),
            "format": checkpoint.format,
            "iteration": checkpoint.iteration,
            "checkpoint_version": checkpoint.checkpoint_version,
            "tensor_model_parallel_size": checkpoint.tensor_model_parallel_size,
            "pipeline_model_parallel_size": checkpoint.pipeline_model_parallel_size,
        },
        "args": {name: json_value(value) for name, value in sorted(checkpoint.args.items())},
        "tensors": [tensor._asdict() for tensor in tensors],
    }


def _reasons(checkpoint: CheckpointPeek, kind: ModelKind | None) -> list[str]:
    return kind.reasons if kind else [f"{checkpoint.args_file} holds no args"]


def _print_tables(checkpoint: CheckpointPeek, kind: ModelKind | None, tensors: list[TensorInfo]) -> None:
    console = Console(highlight=False, soft_wrap=False)
    saved = f"saved with tensor parallel size {checkpoint.tensor_model_parallel_size}"
    console.print(Text(f"{checkpoint.path}: {checkpoint.format}, iteration {checkpoint.iteration}, {saved}"))
    reasons = "; ".join(_reasons(checkpoint, kind))
    console.print(Text(f"model kind: {kind.kind if kind else 'unknown'}, because {reasons}"))
    args = Table(title="Training arguments", title_justify="left")
    args.add_column("argument")
    args.add_column("value", overflow="fold")
    for name, value in sorted(checkpoint.args.items()):
        args.add_row(Text(name), Text(str(json_value(value))))
    console.print(args)
    console.print(_tensor_table(tensors))


def _tensor_table(tensors: list[TensorInfo]) -> Table:
    total = sum(tensor.bytes for tensor in tensors)
    table = Table(title=f"Tensors: {len(tensors)}, {total:,} bytes ({total / _GIB:.2f} GiB)", title_justify="left")
    table.add_column("name", overflow="fold")
    for column in ("shape", "dtype", "bytes"):
        table.add_column(column, justify="right")
    for tensor in tensors:
        name = f"{tensor.part}: {tensor.name}" if tensor.part else tensor.name
        shape = " x ".join(map(str, tensor.shape)) or "scalar"
        table.add_row(Text(name), shape, tensor.dtype, f"{tensor.bytes:,}")
    return table

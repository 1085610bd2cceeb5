"""`megaserve import-hf SRC DST`: a Hugging Face model becomes a Megatron torch_dist checkpoint, tokenizer beside it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from model_providers.checkpoint.atomic_directory import atomic_directory
from model_providers.checkpoint.hf.convert import DtypeChoice, OnProgress, convert
from model_providers.checkpoint.hf.gguf import gguf_to_hf_directory
from model_providers.checkpoint.hf.tokenizer_files import copy_tokenizer
from model_providers.checkpoint.save import TRACKER_FILE, write_torch_dist
from model_providers.errors import CheckpointError, ModelProviderError
from model_providers.notices import silence_upstream_notices


def import_hf(
    source: Path,
    destination: Path,
    *,
    dtype: DtypeChoice = "auto",
    replace: bool = False,
    on_progress: OnProgress | None = None,
) -> bool:
    """Write the Megatron checkpoint `destination` from `source`, and say whether a tokenizer came with it.

    source: a Hugging Face directory with safetensors, or a GGUF file (its weights become float32).
    All or nothing: `destination` appears complete, or stays as it was. Raises CheckpointError when it exists and
    `replace` is false, or is not a checkpoint, and whatever `convert` raises.
    """
    _check_destination(source, destination, replace)
    with _hf_directory(source) as directory:
        state_dict, args = convert(directory, dtype, on_progress)
        with atomic_directory(destination) as building:
            write_torch_dist(building, state_dict=state_dict, args=args)
            return copy_tokenizer(directory, building)


def main(argv: list[str] | None = None) -> int:
    """Exit status 0, or 2 with a message on standard error that says what is wrong, or 130 when interrupted."""
    options = _parser().parse_args(argv)
    silence_upstream_notices()
    try:
        with _progress_bar() as on_progress:
            has_tokenizer = import_hf(
                options.source, options.destination, dtype=options.dtype, replace=options.force, on_progress=on_progress
            )
    except (ModelProviderError, OSError) as error:  # OSError: no permission, a full disk
        print(f"megaserve import-hf: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"megaserve import-hf: interrupted, {options.destination} is as it was", file=sys.stderr)
        return 130
    if not has_tokenizer:
        print(
            f"megaserve import-hf: {options.source} has no tokenizer: give --tokenizer-model when serving",
            file=sys.stderr,
        )
    print(f"wrote {options.destination}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="megaserve import-hf", description=__doc__)
    parser.add_argument(
        "source", metavar="SRC", type=Path, help="directory with config.json and safetensors files, or a GGUF file"
    )
    parser.add_argument("destination", metavar="DST", type=Path, help="checkpoint directory to write")
    parser.add_argument(
        "--dtype",
        choices=["auto", "fp32", "bf16"],
        default="auto",
        help="number format to store; auto: the source's own",
    )
    parser.add_argument("--force", action="store_true", help="replace DST if it is a checkpoint")
    return parser


def _check_destination(source: Path, destination: Path, replace: bool) -> None:
    if not destination.exists() or (destination.is_dir() and not any(destination.iterdir())):
        return
    if not replace:
        raise CheckpointError(destination, "exists already; --force replaces it")
    # What is replaced is deleted, so nothing but a checkpoint may be.
    if not (destination / TRACKER_FILE).is_file():
        raise CheckpointError(
            destination, f"is not a Megatron checkpoint (no {TRACKER_FILE}), so --force leaves it alone"
        )
    if source.resolve().is_relative_to(destination.resolve()):
        raise CheckpointError(destination, f"holds the source {source}, which --force would delete")


@contextmanager
def _hf_directory(source: Path) -> Iterator[Path]:
    if source.suffix != ".gguf":
        yield source
        return
    if not source.is_file():
        raise CheckpointError(source, "does not exist")
    with tempfile.TemporaryDirectory(prefix="megaserve-gguf-") as directory:
        gguf_to_hf_directory(source, Path(directory))
        yield Path(directory)


@contextmanager
def _progress_bar() -> Iterator[OnProgress]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading tensors", total=None)

        def update(done: int, total: int) -> None:
            finished = done == total
            progress.update(task, completed=done, total=total, description="writing" if finished else "reading tensors")

        yield update


if __name__ == "__main__":
    sys.exit(main())

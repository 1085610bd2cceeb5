"""Finds the iteration directory that `--load` means, and which format it is in, from what is on disk alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from model_providers.checkpoint.secure_metadata import METADATA_FILE
from model_providers.config import CheckpointFormat
from model_providers.errors import CheckpointError

TRACKER_FILE = "latest_checkpointed_iteration.txt"
RELEASE = "release"
COMMON_FILE = "common.pt"
RANK_FILE = "model_optim_rng.pt"
_FORMAT_FILE = "metadata.json"
_ITERATION_DIRECTORY = re.compile(r"iter_(\d{7,})")


@dataclass(frozen=True)
class IterationDirectory:
    """path: the directory. iteration: 0 for a release, None when neither its name nor a tracker says."""

    path: Path
    iteration: int | None


def locate(load: Path, ckpt_step: int | None = None) -> IterationDirectory:
    """The iteration directory below `load`, or `load` itself when it is one.

    ckpt_step: the iteration wanted; default: the one that the tracker file names.
    Raises CheckpointError naming what is missing, and what is there instead.
    """
    if not load.exists():
        raise CheckpointError(load, "does not exist; --load takes a checkpoint directory")
    if not load.is_dir():
        raise CheckpointError(load, "is not a directory; --load takes a checkpoint directory")
    if not (load / TRACKER_FILE).exists() and _looks_like_iteration(load):
        return _bare(load, ckpt_step)
    if ckpt_step is not None:
        return _numbered(load, ckpt_step, f"--ckpt-step {ckpt_step}")
    return _tracked(load)


def _bare(load: Path, ckpt_step: int | None) -> IterationDirectory:
    named = _ITERATION_DIRECTORY.fullmatch(load.resolve().name)
    iteration = int(named.group(1)) if named else 0 if load.resolve().name == RELEASE else None
    if ckpt_step is not None and iteration != ckpt_step:
        raise CheckpointError(load, f"is one iteration's directory, and not that of --ckpt-step {ckpt_step}")
    return IterationDirectory(load, iteration)


def _tracked(load: Path) -> IterationDirectory:
    tracker = load / TRACKER_FILE
    try:
        text = tracker.read_bytes()[:64].decode("utf-8", errors="replace").strip()
    except FileNotFoundError as error:
        raise CheckpointError(
            tracker, f"is missing, and {load} is not an iteration's directory itself; {_choices(load)}"
        ) from error
    except OSError as error:
        raise CheckpointError(tracker, f"cannot be read ({error.strerror})") from error
    if text == RELEASE:
        directory = load / RELEASE
        if not directory.is_dir():
            raise CheckpointError(directory, f"does not exist, although {tracker} names it; {_choices(load)}")
        return IterationDirectory(directory, 0)
    if not text.isascii() or not text.isdigit():
        shown = f"holds {text!r}" if text else "is empty"
        raise CheckpointError(tracker, f"{shown}; it must hold an iteration number or 'release'; {_choices(load)}")
    return _numbered(load, int(text), str(tracker))


def _numbered(load: Path, iteration: int, origin: str) -> IterationDirectory:
    directory = load / f"iter_{iteration:07d}"
    if not directory.is_dir():
        raise CheckpointError(directory, f"does not exist, although {origin} names it; {_choices(load)}")
    return IterationDirectory(directory, iteration)


def _choices(load: Path) -> str:
    found = (_ITERATION_DIRECTORY.fullmatch(entry.name) for entry in load.iterdir() if entry.is_dir())
    steps = sorted(int(match.group(1)) for match in found if match)
    if not steps:
        return "there are no iter_NNNNNNN directories to choose from"
    return f"choose one with --ckpt-step {{{', '.join(map(str, steps))}}}"


def _looks_like_iteration(directory: Path) -> bool:
    names = (METADATA_FILE, COMMON_FILE, _FORMAT_FILE)
    return any((directory / name).exists() for name in names) or bool(rank_directories(directory))


def rank_directories(directory: Path) -> list[Path]:
    """Legacy torch: `mp_rank_TT`, or `mp_rank_TT_PPP` with pipeline stages, in order."""
    return sorted(path for path in directory.glob("mp_rank_*") if path.is_dir())


def detect_format(directory: Path) -> CheckpointFormat:
    """torch_dist or torch, by the files of an iteration directory.

    Raises CheckpointError for a directory that is neither, is incomplete, or is of a format that is not supported.
    """
    if (directory / METADATA_FILE).exists():
        return "torch_dist"
    if rank_directories(directory):
        return "torch"
    _refuse_other_backends(directory / _FORMAT_FILE)
    if (directory / COMMON_FILE).exists() or any(directory.glob("*.distcp")):
        raise CheckpointError(directory / METADATA_FILE, "is missing; the checkpoint was not written to its end")
    if any(directory.glob("*.safetensors")):
        raise CheckpointError(directory, "is a Hugging Face model; convert it with `megaserve import-hf SRC DST`")
    raise CheckpointError(
        directory, f"holds neither {METADATA_FILE} (torch_dist) nor mp_rank_00/{RANK_FILE} (legacy torch)"
    )


def _refuse_other_backends(path: Path) -> None:
    if not path.exists():
        return
    try:
        backend = json.loads(path.read_bytes()).get("sharded_backend")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(path, "is damaged: it must hold a JSON object with `sharded_backend`") from error
    if backend != "torch_dist":
        raise CheckpointError(
            path, f"says the format is {backend!r}, which cannot be read here; convert the checkpoint to torch_dist"
        )

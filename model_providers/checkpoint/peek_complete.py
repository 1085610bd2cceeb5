"""Whether all files of a checkpoint are there at full length, by their sizes alone: contents are not read."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.checkpoint.metadata import Metadata

from model_providers.checkpoint.peek_locate import RANK_FILE
from model_providers.checkpoint.secure_metadata import METADATA_FILE
from model_providers.errors import CheckpointError

_UNFINISHED = "the checkpoint was not written, or not copied, to its end"


def check_shards_complete(directory: Path, metadata: Metadata) -> None:
    """torch_dist: every file reaches as far as `.metadata` says. CheckpointError names the first that does not."""
    needed: dict[str, int] = {}
    for info in (metadata.storage_data or {}).values():
        needed[info.relative_path] = max(needed.get(info.relative_path, 0), info.offset + info.length)
    for name, size in sorted(needed.items()):
        path = directory / name
        if not path.resolve().is_relative_to(directory.resolve()):
            raise CheckpointError(directory / METADATA_FILE, f"refers to {name!r}, outside the checkpoint directory")
        if not path.exists():
            raise CheckpointError(path, f"is missing; {_UNFINISHED}")
        if (found := path.stat().st_size) < size:
            raise CheckpointError(path, f"is cut short: {found} bytes of at least {size}; {_UNFINISHED}")


def check_ranks_complete(ranks: Sequence[Path]) -> None:
    """Legacy torch: every rank's file is there and has its end, where a zip archive keeps its directory."""
    for path in (directory / RANK_FILE for directory in ranks):
        if not path.exists():
            raise CheckpointError(path, f"is missing; {_UNFINISHED}")
        if not zipfile.is_zipfile(path):
            raise CheckpointError(path, f"is empty, cut short or not a file that torch.save wrote; {_UNFINISHED}")

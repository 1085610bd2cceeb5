"""A directory that appears complete or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_directory(destination: Path) -> Iterator[Path]:
    """A new directory beside `destination` that takes its place when the block succeeds and is removed when it fails.

    A process killed in between leaves `destination` as it was, and a hidden sibling that `remove_partial` finds.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    building = destination.parent / f"{_partial_prefix(destination)}{secrets.token_hex(4)}"
    try:
        building.mkdir()
        yield building
        if destination.exists():
            _exchange(destination, building)
        else:
            building.rename(destination)
    finally:
        shutil.rmtree(building, ignore_errors=True)  # gone already when all went well


def remove_partial(destination: Path) -> None:
    """Remove what killed processes left beside `destination`; the caller knows that nobody is writing it now."""
    for left in destination.parent.glob(f"{_partial_prefix(destination)}*"):
        shutil.rmtree(left)


def _partial_prefix(destination: Path) -> str:
    return f".{destination.name}.partial-"


def _exchange(destination: Path, building: Path) -> None:
    # A directory that holds files cannot be renamed over: the old one steps aside for the moment between two renames.
    aside = building.with_name(f"{building.name}.old")
    destination.rename(aside)
    try:
        building.rename(destination)
    except OSError:
        aside.rename(destination)
        raise
    shutil.rmtree(aside)

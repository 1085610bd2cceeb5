"""Files that are either whole or absent, also after a power cut, and taking turns at writing them."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Create or replace `path`."""
    temporary = _write_temporary(path, data)
    temporary.replace(path)
    sync_directory(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` when the block ends well; removed otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def create_exclusive(path: Path, data: bytes) -> bool:
    """Create `path`; False when it exists already, whoever created it."""
    temporary = _write_temporary(path, data)
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync_directory(path.parent)
    return True


@contextmanager
def only_process(lock: Path) -> Iterator[None]:
    """Waits until no other process is inside with this lock file. The lock of one that dies is free again."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with suppress(OSError):  # on a file system without locks the last one to write wins
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make a new name in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_temporary(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    with temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary

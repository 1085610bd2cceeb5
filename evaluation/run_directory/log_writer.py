"""Appending outcomes: one write() per line, a file of its own per client process, on disk within a second."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from evaluation.errors import LogWriteError
from evaluation.run_directory.atomic import sync_directory
from evaluation.run_directory.line import encode_line
from evaluation.run_directory.record import Record

SYNC_INTERVAL_SECONDS = 1.0


class LogWriter:
    """One log file, created on entering. Its name is new, and it is locked: no two writers ever share a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(6)}.jsonl"
        self._descriptor = -1
        self._dirty = False

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sync_directory(self._folder)
        except OSError as error:
            raise LogWriteError(f"cannot write the log in {self._folder}: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.sync()
        finally:
            os.close(self._descriptor)

    def append(self, record: Record) -> None:
        """Write one line; LogWriteError when it could not be written whole."""
        line = encode_line(record.to_dict())
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise LogWriteError(f"cannot write to the log in {self._folder}: {error.strerror}") from None
        if written != len(line):
            # Readers drop the torn line; appending to it would spoil the next one too.
            raise LogWriteError(f"the log in {self._folder} took only part of a line; is the disk full?")
        self._dirty = True

    def sync(self) -> None:
        """Wait until all lines so far are on disk."""
        if not self._dirty:
            return
        self._dirty = False
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise LogWriteError(f"cannot flush the log in {self._folder}: {error.strerror}") from None

    async def sync_regularly(self) -> None:
        """Sync every second, without stopping the event loop, until cancelled; a flush under way is waited for, so
        that the file is never closed beneath it and its failure is told."""
        while True:
            await asyncio.sleep(SYNC_INTERVAL_SECONDS)
            flush = asyncio.ensure_future(asyncio.to_thread(self.sync))
            try:
                await asyncio.shield(flush)
            except asyncio.CancelledError:
                await flush
                raise

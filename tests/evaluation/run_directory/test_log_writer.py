"""Writers have files of their own, and a line that cannot be written whole ends the run."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading

import pytest

from evaluation.errors import LogWriteError
from evaluation.run_directory import log_writer
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.log_writer import LogWriter
from evaluation.run_directory.record import Record
from evaluation.status import Status


def make_record(number: int) -> Record:
    return Record(key=f"{number}", item_id="i", row=1, status=Status.OK, attempt=1, text="t", answer="t")


def test_two_writers_never_share_a_file_and_hold_their_lock(tmp_path):
    with LogWriter(tmp_path) as first, LogWriter(tmp_path) as second:
        first.append(make_record(1))
        second.append(make_record(2))
        paths = list(tmp_path.iterdir())
        assert len(paths) == 2
        descriptor = os.open(paths[0], os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    assert {record.key for record in read_logs(tmp_path).records} == {"1", "2"}


def test_line_is_in_the_file_as_soon_as_it_is_appended(tmp_path):
    with LogWriter(tmp_path) as log:
        log.append(make_record(1))
        assert len(read_logs(tmp_path).records) == 1


def test_full_disk_is_an_error_that_loses_no_earlier_line(tmp_path, full_disk):
    kept = 0
    with LogWriter(tmp_path) as log, pytest.raises(LogWriteError, match=r"part of a line|cannot write"), full_disk(300):
        for number in range(300):
            log.append(make_record(number))
            kept += 1
    contents = read_logs(tmp_path)
    assert len(contents.records) == kept
    assert [damage.kind for damage in contents.damage] in ([], ["torn"])


def test_flush_under_way_ends_before_the_file_is_closed(tmp_path, monkeypatch):
    """The disk is slow: the writer is told to stop while a flush hangs in its thread."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def slow_fsync(descriptor):
        begun.set()
        may_end.wait(60)
        os.fstat(descriptor)  # fails when the file was closed
        ended.set()

    async def stop_while_flushing(log):
        syncing = asyncio.create_task(log.sync_regularly())
        await asyncio.to_thread(begun.wait, 60)
        syncing.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not syncing.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await syncing
        assert ended.is_set()

    with LogWriter(tmp_path) as log:
        monkeypatch.setattr(log_writer, "SYNC_INTERVAL_SECONDS", 0.01)
        monkeypatch.setattr("evaluation.run_directory.log_writer.os.fsync", slow_fsync)
        log.append(make_record(1))
        asyncio.run(stop_while_flushing(log))
        monkeypatch.undo()

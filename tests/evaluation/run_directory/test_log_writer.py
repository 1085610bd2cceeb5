"""Writers have files of their own, and a line that cannot be written whole ends the run."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from evaluation.errors import LogWriteError
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


@contextmanager
def full_disk(largest_file: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes; not a fixture, since pytest's own output may be a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_is_an_error_that_loses_no_earlier_line(tmp_path):
    kept = 0
    with LogWriter(tmp_path) as log, pytest.raises(LogWriteError, match=r"part of a line|cannot write"), full_disk(300):
        for number in range(300):
            log.append(make_record(number))
            kept += 1
    contents = read_logs(tmp_path)
    assert len(contents.records) == kept
    assert [damage.kind for damage in contents.damage] in ([], ["torn"])

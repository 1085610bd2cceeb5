"""A bar on a terminal, plain lines elsewhere; both count the same."""

from __future__ import annotations

import io

import pytest

from evaluation import progress
from evaluation.progress import BarReporter, LineReporter, make_reporter
from evaluation.run_directory.record import Record
from evaluation.status import Status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_record(status: Status) -> Record:
    usage = {"prompt_tokens": 1, "completion_tokens": 50} if status.is_answered else None
    return Record(key="k", item_id="i", row=1, status=status, attempt=1, text=None, answer=None, usage=usage)


def test_bar_on_a_terminal():
    stream = Terminal()
    reporter = make_reporter(3, stream)
    assert isinstance(reporter, BarReporter)
    with reporter:
        reporter.show(make_record(Status.OK))
        reporter.show(make_record(Status.TIMEOUT))
    assert "2/3" in stream.getvalue()


def test_one_line_at_the_end_elsewhere():
    stream = io.StringIO()
    reporter = make_reporter(3, stream)
    assert isinstance(reporter, LineReporter)
    with reporter:
        reporter.show(make_record(Status.OK))
        reporter.show(make_record(Status.TIMEOUT))
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("Of 3 questions: done 1, failed 1, remaining 1, ")
    assert " requests/s, " in line and " tokens/s, " in line
    assert line.endswith(" to go")


def test_lines_in_between_when_it_takes_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "LINE_INTERVAL_SECONDS", 0.0)
    stream = io.StringIO()
    with make_reporter(2, stream) as reporter:
        reporter.show(make_record(Status.OK))
        reporter.show(make_record(Status.OK))
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "Of 2 questions: done 1",
        "Of 2 questions: done 2",
        "Of 2 questions: done 2",
    ]

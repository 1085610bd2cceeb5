"""How far a run is: a bar on a terminal, one plain line every 30 seconds elsewhere."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task
from rich.text import Text

from evaluation.run_directory.record import Record

LINE_INTERVAL_SECONDS = 30.0


class Tally:
    """Counts since this client started, rates over that time, and what they promise for the rest."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.failed = 0
        self.output_tokens = 0
        self._started = time.monotonic()

    def add(self, record: Record) -> None:
        if record.status.is_answered:
            self.done += 1
        else:
            self.failed += 1
        self.output_tokens += (record.usage or {}).get("completion_tokens", 0)

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        ended = self.done + self.failed
        remaining = self.total - ended
        requests, tokens = ended / seconds, self.output_tokens / seconds
        eta = f", {timedelta(seconds=round(remaining / requests))} to go" if requests and remaining else ""
        counts = f"done {self.done}, failed {self.failed}, remaining {remaining}"
        return f"{counts}, {requests:.1f} requests/s, {tokens:.0f} tokens/s{eta}"


class Reporter(Protocol):
    """Shows outcomes as they come."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, record: Record) -> None: ...


def make_reporter(total: int, stream: TextIO | None = None) -> Reporter:
    """A reporter for `total` questions, fit for `stream` (standard error by default)."""
    stream = stream or sys.stderr
    return BarReporter(total, stream) if stream.isatty() else LineReporter(total, stream)


class LineReporter:
    """One line every 30 seconds, and one at the end."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._stream = stream
        self._tally = Tally(total)
        self._next_line = time.monotonic() + LINE_INTERVAL_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._print()

    def show(self, record: Record) -> None:
        self._tally.add(record)
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_SECONDS
            self._print()

    def _print(self) -> None:
        print(f"Of {self._tally.total} questions: {self._tally}", file=self._stream, flush=True)


class BarReporter:
    """A bar with counts, rates and the time that remains."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._tally = Tally(total)
        self._progress = Progress(
            BarColumn(), MofNCompleteColumn(), _TallyColumn(self._tally), console=Console(file=stream)
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, record: Record) -> None:
        self._tally.add(record)
        self._progress.advance(self._task)


class _TallyColumn(ProgressColumn):
    """Written when the bar is drawn, not for every outcome."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def render(self, task: Task) -> Text:
        return Text(str(self._tally))

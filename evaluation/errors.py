"""Every error the client raises on purpose, and the exit status each ends with.

EvaluationError
├── SetupError                 nothing was asked: usage, data, server or run directory (exit status 2)
│   ├── DatasetError           the data file or the prompt template cannot be used
│   ├── PreflightError         the server is down, or is not one that this data can be asked
│   └── RunDirectoryError      the run directory cannot be used
│       └── MixedRunError      it holds another model's, data set's or parameters' answers
└── RunAbortedError            stopped half way; the log is consistent and the run resumes (exit status 4)
    ├── AuthenticationError    the server refuses this client (exit status 5)
    ├── ServerLostError        the server did not come back in time
    ├── RanksError             offline: another rank failed, or did not come in time
    └── LogWriteError          an outcome could not be written (disk full)
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """What the command returns to the shell."""

    COMPLETE = 0
    SETUP = 2
    TOO_MANY_FAILED = 3
    INCOMPLETE = 4
    AUTHENTICATION = 5
    INTERRUPTED = 130  # as a shell reports a process that SIGINT ended


class EvaluationError(Exception):
    """Root of the tree; `exit_status` is what the command returns."""

    exit_status = ExitStatus.SETUP


class SetupError(EvaluationError):
    """The run cannot start; the message says what to change."""


class DatasetError(SetupError):
    """The data file as a whole is unusable. A single bad row is a `client_data` outcome instead."""


class PreflightError(SetupError):
    """The server does not answer, or cannot be asked this data."""


class RunDirectoryError(SetupError):
    """The run directory is missing, foreign or damaged."""


class MixedRunError(RunDirectoryError):
    """The run directory belongs to another model, data set, prompt or sampling parameters."""


class RunAbortedError(EvaluationError):
    """The run stopped before its end; the same command resumes it."""

    exit_status = ExitStatus.INCOMPLETE


class AuthenticationError(RunAbortedError):
    """401 or 403: every further request would fail the same way."""

    exit_status = ExitStatus.AUTHENTICATION


class ServerLostError(RunAbortedError):
    """The server stayed unreachable or not ready for longer than allowed."""


class RanksError(RunAbortedError):
    """Another rank of an offline evaluation failed or is missing; the message names it."""


class LogWriteError(RunAbortedError):
    """The log cannot be written; going on would lose answers."""

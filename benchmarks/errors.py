"""Every error the benchmarks raise on purpose.

BenchmarkError
├── SetupError          nothing was measured: usage, checkpoint, or the file for the result (exit status 2)
└── MeasurementError    what was measured failed, or did not do the work it was given (exit status 1)
"""

from __future__ import annotations


class BenchmarkError(Exception):
    """Root of the tree; `exit_status` is what the command returns."""

    exit_status = 1


class SetupError(BenchmarkError):
    """The measurement cannot start; the message says what to change."""

    exit_status = 2


class MeasurementError(BenchmarkError):
    """A worker or the server ended early, answered with an error, or generated another number of tokens."""

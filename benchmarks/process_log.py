"""What a child process prints, kept to be shown when it fails."""

from __future__ import annotations

import os
import tempfile
from typing import IO


class ProcessLog:
    """file: without a name; hand it to the child as its standard output or standard error."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="megaserve-bench-")  # noqa: SIM115  # closed by close()

    def text(self) -> str:
        """All of it so far. The child writes at an offset that it shares with this file, so nothing is sought."""
        descriptor = self.file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def last_lines(self, count: int = 8) -> str:
        """For the end of an error message; empty when nothing was printed."""
        lines = [line for line in self.text().splitlines() if not line.startswith("[arg_provenance]")]
        return "".join(f"\n  {line}" for line in lines[-count:])

    def close(self) -> None:
        self.file.close()

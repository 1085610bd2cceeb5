"""The process in which a client's grammar is tried out, seen from rank 0; see `grammar_check`."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from server.process_lifetime import bound_command

_LEAST_IDS = 512  # single bytes and the library's own
_PROGRAM = Path(__file__).with_name("grammar_check.py")
_SOURCE_ROOT = _PROGRAM.parents[2]


class GrammarError(Exception):
    """A grammar cannot be used; the message is for its client."""


class GrammarChecker:
    """Starts the process when it is first needed, and again after a grammar has ended it. Not thread-safe.

    vocab_size: ids that a grammar may name. timeout: seconds a grammar may take.
    """

    def __init__(self, vocab_size: int, timeout: float) -> None:
        self._vocab_size = vocab_size
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, kind: str, text: str) -> str:
        """The grammar as Lark. Raises GrammarError."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"kind": kind, "text": text}).encode() + b"\n")
            process.stdin.flush()
            line = _read_line(process.stdout, time.monotonic() + self._timeout)
        except BrokenPipeError:
            line = b""
        except TimeoutError:
            self.close()
            raise GrammarError(f"compiling it takes longer than {self._timeout:g} s") from None
        if not line.endswith(b"\n"):
            self.close()
            raise GrammarError("it is too complex to compile: nested too deeply, or too large")
        reply: dict[str, str] = json.loads(line)
        if "error" in reply:
            raise GrammarError(reply["error"].strip())
        return reply["grammar"]

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                _close(pipe)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            # It ends by itself when this end of its standard input closes, but reads that only between two grammars.
            # The kernel binds it to the thread that starts it; the compiler's lives until the compiler is closed.
            command = [sys.executable, "-I", str(_PROGRAM), str(max(self._vocab_size, _LEAST_IDS))]
            self._process = subprocess.Popen(
                bound_command(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=_SOURCE_ROOT,  # where the wrapper is found, however this process was started
            )
        return self._process


def _read_line(pipe: IO[bytes], deadline: float) -> bytes:
    """Up to a newline or the end of the pipe. Raises TimeoutError at the deadline (monotonic seconds)."""
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        piece = os.read(pipe.fileno(), 1 << 16)
        if not piece:
            break
        data += piece
    return data


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:  # what was still to be written has no reader any more
        return

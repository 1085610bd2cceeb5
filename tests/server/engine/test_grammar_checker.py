"""The process that tries grammars out."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

PARENT = """
from server.engine.grammar_checker import GrammarChecker

checker = GrammarChecker(512, timeout=60)
checker.check("regex", "a")
print(checker._process.pid, flush=True)
input()
"""


def test_it_dies_with_its_parent_whatever_it_is_doing() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        ended = os.pidfd_open(child)
        try:
            os.kill(child, signal.SIGSTOP)  # like a long compilation, it reads nothing
            parent.kill()
            assert select.select([ended], [], [], 30)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):  # as it should be
                signal.pidfd_send_signal(ended, signal.SIGKILL)
            os.close(ended)

"""Child processes that cannot outlive their parent: the kernel's parent-death signal, set without importing torch.

The parent wraps each child's command with `bound_command`; the wrapper arms the signal, remembers its own process id
in the environment, and becomes the command. A grandchild that calls `die_with_parent` first thing is bound to the
child in the same way, so killing the parent takes the whole tree down.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

PARENT_PID_VARIABLE = "MEGASERVE_PARENT_PID"

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(expected_parent: int | None = None) -> None:
    """Ask the kernel to SIGKILL this process when its parent dies; exit at once if the parent is already gone.

    expected_parent: the parent's process id; by default what the wrapper put into the environment, if it ran. Without
    either, a parent that died before this call cannot be told from the one that adopted this process.
    Call it from the main thread, before slow imports. Raises OSError where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    if expected_parent is None:
        expected_parent = int(os.environ.get(PARENT_PID_VARIABLE, 0)) or None
        if expected_parent == os.getpid():
            return  # the wrapper became this very process and has checked its parent
    if expected_parent is not None and os.getppid() != expected_parent:
        os._exit(1)


def bound_command(command: Sequence[str]) -> list[str]:
    """`command`, to be started by this process and killed with it.

    A wrapper process that execs is used rather than a hook between fork and exec: the parent has threads by then, and
    Python code that runs in a forked copy of a threaded process can deadlock.
    """
    return [sys.executable, "-m", "server.process_lifetime", str(os.getpid()), *command]


def start_session(command: Sequence[str], stdin: int = subprocess.DEVNULL, **variables: str) -> subprocess.Popen[bytes]:
    """Start a bound command as the leader of a session, so that Ctrl-C does not reach it; variables: for it alone."""
    environment = os.environ | variables
    return subprocess.Popen(bound_command(command), stdin=stdin, env=environment, start_new_session=True)


def main(argv: Sequence[str]) -> None:
    """`python -m server.process_lifetime PARENT_PID COMMAND...`: become COMMAND, bound to PARENT_PID."""
    parent, *command = argv
    die_with_parent(int(parent))
    os.environ[PARENT_PID_VARIABLE] = str(os.getpid())
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])

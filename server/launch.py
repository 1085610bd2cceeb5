"""`megaserve serve`: bind the port, resolve the arguments in a process of their own, then answer HTTP and keep ranks.

This process imports neither torch nor megatron.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from server.arguments.preparse import PreparsedArgs, preparse
from server.config import ResolvedDocument
from server.errors import ConfigurationError
from server.launch_group import RankGroup, start_group
from server.launch_listener import bind_listener, url_of
from server.launch_rank import StandbyRank
from server.log_format import configure_logging
from server.process_lifetime import bound_command
from server.supervisor import StartGroup

_MAX_RUN_DIRECTORY_BYTES = 80
"""Unix socket paths end at 107 bytes; this leaves room for the file's name."""


def serve(argv: Sequence[str]) -> int:
    """Run the server; the process's exit status.

    0 after SIGTERM or Ctrl-C, 1 when the ranks cannot be started, 2 for bad input, 3 for conflicting arguments.
    """
    return run_command(lambda: _serve(argv))


def run_command(command: Callable[[], int]) -> int:
    """The command's exit status, with errors and interruptions as one line instead of a stack trace."""
    try:
        with _sigterm_exits():
            return command()
    except ConfigurationError as error:
        print(f"megaserve: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


def listen(args: PreparsedArgs) -> socket.socket:
    """Bind the port and say where. Raises ConfigurationError."""
    listener = bind_listener(args.server.host, args.server.port)
    print(f"megaserve: listening on {url_of(listener, is_tls=args.server.ssl_certfile is not None)}", flush=True)
    return listener


def resolve(argv: Sequence[str], document_file: Path | None) -> int:
    """Run the resolver process on this command line; its exit status. It prints on this process's standard output.

    document_file: where it writes the resolved document, for a start; None when it only prints.
    """
    output = [] if document_file is None else ["--out", str(document_file)]
    command = [sys.executable, "-m", "server.arguments.resolver", *output, "--", *argv]
    with subprocess.Popen(bound_command(command)) as resolver:
        try:
            if document_file is not None:
                import server.launch_http  # noqa: F401  # two seconds of imports that need not come afterwards
            return resolver.wait()
        except BaseException:  # SIGTERM or Ctrl-C: nobody waits for what it resolves
            resolver.kill()
            raise


def run_resolved(document: ResolvedDocument, listener: socket.socket, directory: Path, start: StartGroup) -> int:
    """Serve a resolved document on a listening socket; the exit status. Raises ConfigurationError."""
    from server.launch_http import run_http  # not at the top: what only prints has no use for it

    configure_logging(document.values["log_level"], document.values["log_format"])
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return run_http(document, listener, directory, start)


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only this user can enter, removed at the end; short enough for socket files."""
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > _MAX_RUN_DIRECTORY_BYTES:
        parent = Path("/tmp")
    with tempfile.TemporaryDirectory(prefix="megaserve-", dir=parent, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _serve(argv: Sequence[str]) -> int:
    args = preparse(argv)
    if args.prints_only:
        return resolve(argv, None)
    with listen(args) as listener, private_directory() as directory, StandbyRank() as first_rank:
        document_file = directory / "document.json"
        status = resolve(argv, document_file)
        if status != 0:
            return status
        document = ResolvedDocument.read(document_file)

        async def start(socket_file: Path) -> RankGroup:
            return start_group(document, document_file, socket_file, first_rank)

        return run_resolved(document, listener, directory, start)


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Until the event loop takes signals over, SIGTERM ends the process with status 0, cleaning up on the way."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)

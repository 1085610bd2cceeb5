"""`python -m server.arguments.resolver [--out FILE] -- ARGV...`: from a command line to one resolved document.

A short-lived process of its own, since it imports torch and Megatron, which the HTTP process must not.

Exit status: 0, 2 for an error (one line on standard error that names the file or flag), 3 for conflicts (the document
is written all the same, and every conflict is on standard error). Standard output carries what was asked for, help or
resolved arguments, and nothing else: what libraries print while they are imported goes to standard error.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from model_providers.errors import ModelProviderError
from model_providers.megatron_import import import_megatron
from server.errors import ConfigurationError

EXIT_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """`[--out FILE] -- ARGV...`; ARGV is what followed `megaserve serve`."""
    given = list(sys.argv[1:] if argv is None else argv)
    at = given.index("--") if "--" in given else len(given)
    own, serve = given[:at], given[at + 1 :]
    if own and (len(own) != 2 or own[0] != "--out"):
        print("usage: python -m server.arguments.resolver [--out FILE] -- ARGUMENTS OF serve", file=sys.stderr)
        return EXIT_ERROR
    with library_output_to_stderr() as stdout:
        with quiet_imports():
            import_megatron()
            from server.arguments.resolve_command import run
        try:
            return run(serve, out=Path(own[1]) if own else None, stdout=stdout)
        except (ConfigurationError, ModelProviderError) as error:
            print(f"megaserve: error: {error}", file=sys.stderr)
            return EXIT_ERROR


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Megatron tells on import which optional packages are missing, torch that there is no CUDA: nothing is wrong."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"megatron\.")
        warnings.filterwarnings("ignore", category=SyntaxWarning)  # when its sources are compiled the first time
        yield


@contextmanager
def library_output_to_stderr() -> Iterator[TextIO]:
    """Point descriptor 1 at standard error, for C libraries too; yields a stream on what it was."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as stream:
            yield stream
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Nothing is left to do, and tearing the interpreter with torch and Megatron in it down takes a second.
    os._exit(status)

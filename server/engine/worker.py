"""A rank's main program, run by torchrun: `... -m server.engine.worker --document FILE --socket FILE`.

It binds itself to its parent before the slow imports, so that a rank cannot be orphaned while it loads.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from model_providers.megatron_import import import_megatron
from model_providers.notices import silence_upstream_notices
from server.process_lifetime import die_with_parent


def main(document_path: Path | None, socket_path: Path | None) -> int:
    """Run this rank until it is told to stop -> the exit status. Ranks other than 0 may pass None."""
    die_with_parent()
    silence_upstream_notices()
    import_megatron()
    from server.engine.rank import run_rank

    return run_rank(document_path, socket_path)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One rank of a megaserve engine; started by `megaserve serve`.")
    parser.add_argument("--document", type=Path, required=True, help="resolved arguments, as JSON")
    parser.add_argument("--socket", type=Path, required=True, help="unix socket of the HTTP process")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = _parse()
    status = main(arguments.document, arguments.socket)
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is shut down; tearing the interpreter with torch and Megatron in it down takes seconds more.
    os._exit(status)

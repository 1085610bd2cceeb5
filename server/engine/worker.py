"""A rank's main program: `python -m server.engine.worker`, which reads a `RankOrder` from standard input.

It binds itself to its parent before the slow imports, so that a rank cannot be orphaned while it loads, and reads after
them: whoever starts it need not know by then what is to be served. An input without an order ends it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from model_providers.megatron_import import import_megatron
from model_providers.notices import silence_upstream_notices
from server.ipc import decode_order
from server.process_lifetime import die_with_parent


def main(document_path: Path | None, socket_path: Path | None) -> int:
    """Run this rank, as torchrun's environment describes it, until it is told to stop -> the exit status.

    Ranks other than 0 may pass None.
    """
    _prepare()
    from server.engine.rank import run_rank

    return run_rank(document_path, socket_path)


def main_on_order() -> int:
    """Import, read the order, and run the rank that it makes of this process -> the exit status."""
    _prepare()
    from model_providers.parallel import join_world_by_file
    from server.engine.rank import run_rank

    data = sys.stdin.buffer.read()
    if not data:
        return 0
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # for what this process starts: an end of no pipe
    order = decode_order(data)
    # As torchrun would say it, for whatever library asks.
    os.environ |= {name: str(order.rank) for name in ("RANK", "LOCAL_RANK")} | {"WORLD_SIZE": str(order.world_size)}
    join_world_by_file(Path(order.rendezvous), order.rank, order.world_size)
    return run_rank(Path(order.document), Path(order.socket))


def _prepare() -> None:
    die_with_parent()
    silence_upstream_notices()
    import_megatron()


if __name__ == "__main__":
    status = main_on_order()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is shut down; tearing the interpreter with torch and Megatron in it down takes seconds more.
    os._exit(status)

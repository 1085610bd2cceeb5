"""`python stub_serve.py DOCUMENT LOG [--ranks N] [--fail-to-load]`: the HTTP process on the stub engine.

With --ranks there are several stubs, of which the first answers. All but resolution and the ranks' own program is the
real thing: listener, uvicorn, supervisor, process lifetime.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from server.config import ResolvedDocument
from server.launch import private_directory, run_command, run_resolved
from server.launch_group import LaunchedGroup, RankGroup
from server.launch_listener import bind_listener, url_of
from server.process_lifetime import start_session

STUB = Path(__file__).with_name("stub_engine.py")


def serve(document_file: Path, log: Path, num_ranks: int, extra: list[str]) -> int:
    document = ResolvedDocument.read(document_file)
    with bind_listener("127.0.0.1", 0) as listener, private_directory() as directory:
        print(url_of(listener), flush=True)

        async def start_group(socket_file: Path) -> RankGroup:
            files = ["--socket", str(socket_file), "--log-file", str(log)]
            command = [sys.executable, str(STUB), *files, "--num-ranks", str(num_ranks), *extra]
            return LaunchedGroup([start_session([*command, "--rank", str(rank)]) for rank in range(num_ranks)])

        return run_resolved(document, listener, directory, start_group)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("document", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    arguments, extra = parser.parse_known_args()
    sys.exit(run_command(lambda: serve(arguments.document, arguments.log, arguments.ranks, extra)))

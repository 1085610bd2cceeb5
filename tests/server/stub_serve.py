"""`python stub_serve.py DOCUMENT LOG [--ranks N] [--fail-to-load]`: the HTTP process on the stub engine.

With --ranks the stub runs under torchrun's launcher. All but resolution is the real thing: listener, uvicorn,
supervisor, process lifetime.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from server.config import ResolvedDocument
from server.launch import private_directory, run_command, run_resolved
from server.launch_group import LaunchedGroup, RankGroup, rank_environment
from server.launch_listener import bind_listener, url_of

STUB = Path(__file__).with_name("stub_engine.py")


def serve(document_file: Path, log: Path, num_ranks: int, extra: list[str]) -> int:
    document = ResolvedDocument.read(document_file)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"] if num_ranks else []
    with bind_listener("127.0.0.1", 0) as listener, private_directory() as directory:
        print(url_of(listener), flush=True)

        async def start_group(socket_file: Path) -> RankGroup:
            command = [
                sys.executable,
                *launcher,
                str(STUB),
                "--socket",
                str(socket_file),
                "--log-file",
                str(log),
                *extra,
            ]
            return await LaunchedGroup.start(command, rank_environment(document.values))

        return run_resolved(document, listener, directory, start_group)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("document", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--ranks", type=int, default=0)
    arguments, extra = parser.parse_known_args()
    sys.exit(run_command(lambda: serve(arguments.document, arguments.log, arguments.ranks, extra)))

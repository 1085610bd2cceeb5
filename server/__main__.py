"""`python -m server ARGS` is `megaserve serve ARGS`; under torchrun every rank runs it."""

from __future__ import annotations

import sys

from server.cli import main
from server.launch_attached import is_torchrun_rank, run_rank

if __name__ == "__main__":
    sys.exit(run_rank(sys.argv[1:]) if is_torchrun_rank() else main(["serve", *sys.argv[1:]]))

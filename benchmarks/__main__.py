"""`python -m benchmarks` is `megaserve bench`, also where the script is not installed."""

from __future__ import annotations

import sys

from benchmarks.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m evaluation ...` is `megaserve evaluate ...`."""

import sys

from evaluation.cli import main

if __name__ == "__main__":
    sys.exit(main())

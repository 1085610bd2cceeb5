"""The demonstration from end to end: SmolLM2 with text, then the repository's LLaVA with pictures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from server.demo.pictures import demonstrate_pictures
from server.demo.served import DemoError
from server.demo.text import demonstrate_text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration -> 0, or 1 when a step failed."""
    arguments = _parse(argv)
    run = arguments.output or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    try:
        run.mkdir(parents=True)
        if arguments.only != "pictures":
            demonstrate_text(run, leave_up=arguments.serve and arguments.only == "text")
        if arguments.only != "text":
            demonstrate_pictures(run, leave_up=arguments.serve)
    except FileExistsError:
        print(f"megaserve: error: {run} exists already; name another directory with --output", file=sys.stderr)
        return 1
    except DemoError as error:
        print(f"megaserve: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="megaserve demo",
        description="Serve, ask and evaluate two real checkpoints: SmolLM2, and a LLaVA trained on easy-vqa.",
    )
    parser.add_argument("--only", choices=["text", "pictures"], help="one of the two checkpoints; default: both")
    parser.add_argument("--serve", action="store_true", help="leave the last server up at the end, until Ctrl-C")
    parser.add_argument("--output", type=Path, help="directory for logs and results (default: runs/demo-DATE)")
    return parser.parse_args(argv)

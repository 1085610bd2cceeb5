"""The `megaserve` script: one subcommand each for serving, looking into checkpoints, importing, and measuring.

Every subcommand is imported when it is called: this file is the one place in `server` that knows other packages, and
`megaserve serve` must not pay for what the others import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NamedTuple


class Command(NamedTuple):
    """run: takes the arguments after the subcommand's name and returns the exit status."""

    help: str
    run: Callable[[list[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; its exit status, or 2 when there is no such subcommand."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "--version":
        print(f"megaserve {version('megaserve')}")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        print(f"megaserve: error: there is no command {name!r}; choose from {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return command.run(rest)


def usage() -> str:
    """What `megaserve --help` prints."""
    lines = [f"  {name:<10}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: megaserve COMMAND ...",
            "",
            "Serve and evaluate Megatron-LM checkpoints.",
            "",
            "commands:",
            *lines,
            "",
            "`megaserve COMMAND --help` describes a command; `megaserve --version` prints the version.",
        ]
    )


def _serve(argv: list[str]) -> int:
    from server.launch import serve

    return serve(argv)


def _inspect(argv: list[str]) -> int:
    from server.arguments.inspect_command import main

    return main(argv)


def _import_hf(argv: list[str]) -> int:
    from model_providers.checkpoint.import_command import main

    return main(argv)


def _demo(argv: list[str]) -> int:
    from server.demo.command import main

    return main(argv)


def _evaluate(argv: list[str]) -> int:
    from evaluation.cli import main

    return main(argv)


def _score(argv: list[str]) -> int:
    from evaluation.cli_score import main

    return main(argv)


def _compare(argv: list[str]) -> int:
    from evaluation.cli_compare import main

    return main(argv)


def _bench(argv: list[str]) -> int:
    from benchmarks.cli import main

    return main(argv)


COMMANDS = {
    "serve": Command("answer HTTP requests with the model of a checkpoint", _serve),
    "inspect": Command("show a checkpoint's kind, arguments and tensors", _inspect),
    "import-hf": Command("write a Megatron checkpoint from a Hugging Face directory", _import_hf),
    "demo": Command("serve two small checkpoints, ask them, evaluate them", _demo),
    "evaluate": Command("ask a server the questions of a data set and score the answers", _evaluate),
    "score": Command("score a finished run again, without asking anything", _score),
    "compare": Command("compare two runs question by question", _compare),
    "bench": Command("measure throughput", _bench),
}

"""The resolved arguments as people read them: final values, where each came from, the kind of model, conflicts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from server.arguments.classification import classify
from server.config import ResolvedArgument, ResolvedDocument

_WIDTH = 160
_DOTS = 48


def print_tables(document: ResolvedDocument, file: TextIO) -> None:
    """(a) final values, (b) provenance, (c) kind and why."""
    console = Console(file=file, width=_WIDTH, highlight=False, soft_wrap=False)
    _print_values(document, file)
    console.print(_provenance("Where values came from", _languages(document)))
    vision = _visions(document)
    if vision:
        console.print(_provenance("Where values of the image side came from", vision))
    _print_kind(document, console)


def _print_values(document: ResolvedDocument, file: TextIO) -> None:
    """As Megatron's training scripts print them: name, dots, value."""
    print("------------------------ arguments ------------------------", file=file)
    for argument in sorted(document.arguments, key=lambda a: a.arg.lower()):
        dots = "." * max(1, _DOTS - len(argument.arg))
        print(f"  {argument.arg} {dots} {_shown(argument.value)}", file=file)
    print("-------------------- end of arguments ---------------------", file=file)


def _provenance(title: str, arguments: Iterable[ResolvedArgument]) -> Table:
    table = Table(title=title, title_justify="left", caption="Arguments not listed have their parser's default.")
    for column in ("argument", "value", "source", "command line", "config file", "checkpoint", "default", "note"):
        table.add_column(column, overflow="fold", no_wrap=column in ("argument", "source"))
    for a in arguments:
        source = a.source.replace("_", " ") + (" (overrides)" if a.overridden else "")
        cells = (a.value, a.command_line, a.config_file, a.checkpoint, a.default)
        value, typed, in_file, saved, default = (_cell(cell) for cell in cells)
        table.add_row(Text(a.arg), value or Text("None"), source, typed, in_file, saved, default, Text(a.note))
    return table


def _of_interest(document: ResolvedDocument) -> list[ResolvedArgument]:
    return [a for a in document.arguments if a.source != "default" or (a.note and classify(a.arg).effect == "used")]


def _languages(document: ResolvedDocument) -> list[ResolvedArgument]:
    return [a for a in _of_interest(document) if classify(a.arg).category != "vision" or document.kind == "gpt"]


def _visions(document: ResolvedDocument) -> list[ResolvedArgument]:
    """All of them, defaults too: what a model does to images is worth seeing whole."""
    if document.kind == "gpt":
        return []
    return [a for a in document.arguments if classify(a.arg).category == "vision"]


def _print_kind(document: ResolvedDocument, console: Console) -> None:
    where = document.checkpoint
    console.print(Text(f"checkpoint: {where.path} ({where.format}, iteration {where.iteration})"))
    console.print(Text(f"model kind: {document.kind}, because {'; '.join(document.reasons)}"))


def print_conflicts(document: ResolvedDocument, file: TextIO) -> None:
    """One line each, on what disagrees and what would resolve it."""
    for conflict in document.conflicts:
        print(f"conflict: {conflict.message}; to resolve: {conflict.fix}", file=file)


def provenance_lines(document: ResolvedDocument) -> Iterable[str]:
    """`[arg_provenance] {json}` for every argument that did not come from the parser's default."""
    for a in document.arguments:
        if a.source != "default":
            yield "[arg_provenance] " + json.dumps(
                {
                    "arg": a.arg,
                    "value": a.value,
                    "source": a.source,
                    "command_line": a.command_line,
                    "config_file": a.config_file,
                    "checkpoint": a.checkpoint,
                    "default": a.default,
                    "overridden": a.overridden,
                    "note": a.note,
                }
            )


def _cell(value: Any) -> Text:
    return Text("" if value is None else _shown(value))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else str(value)

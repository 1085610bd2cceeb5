"""What the HTTP process must know before arguments are resolved: where to listen, and whether to serve at all.

Torch-free. Mistyped flags, conflicts and everything about the model are left to the resolver process.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from server.arguments.config_file import read_config_file
from server.arguments.flags import add_command_args, add_model_args, add_server_args
from server.arguments.quiet_parser import QuietParser, parse_config_values
from server.arguments.ranges import check_ranges
from server.config import ServerConfig


@dataclass(frozen=True)
class PreparsedArgs:
    """server: from command line, else --config file, else default.

    load: None when --load is missing, which the resolver reports. help, help_all, print_resolved_args: as asked for.
    """

    server: ServerConfig
    load: str | None
    help: bool
    help_all: bool
    print_resolved_args: Literal["table", "json"] | None

    @property
    def prints_only(self) -> bool:
        """The command prints and ends: the caller runs the resolver with its own streams and returns its status."""
        return self.help or self.help_all or self.print_resolved_args is not None


def preparse(argv: Sequence[str]) -> PreparsedArgs:
    """Raises ConfigurationError for a value of the wrong type and for a config file that cannot be read."""
    parser = _parser()
    defaults = vars(parser.parse_args([]))
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    typed = vars(parser.parse_known_args(list(argv))[0])
    in_file = _from_config_file(parser, typed.get("config"))
    values = defaults | in_file | typed
    check_ranges(in_file | typed)
    return PreparsedArgs(
        server=ServerConfig.from_values(values),
        load=values["load"],
        help=values["help"],
        help_all=values["help_all"],
        print_resolved_args=values["print_resolved_args"],
    )


def _parser() -> QuietParser:
    parser = QuietParser(allow_abbrev=False, add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    add_model_args(parser)
    add_server_args(parser)
    add_command_args(parser)
    return parser


def _from_config_file(parser: QuietParser, path: str | None) -> dict[str, Any]:
    """ServerConfig's fields and `load`, each checked as on the command line."""
    if path is None:
        return {}
    wanted = {field.name for field in dataclasses.fields(ServerConfig)} | {"load"}
    named = {name: value for name, value in read_config_file(Path(path)).items() if name in wanted}
    return parse_config_values(parser, named, path)

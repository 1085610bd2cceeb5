"""The whole parser: Megatron's arguments as the installed megatron-core defines them, then ours.

What the user typed is found by parsing: with every default suppressed, a parse returns what was given and nothing else.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.training.arguments import add_megatron_arguments

from server.arguments.config_file import read_config_file
from server.arguments.flags import add_command_args, add_engine_args, add_model_args, add_server_args
from server.arguments.option_groups import say_booleans_both_ways
from server.arguments.quiet_parser import QuietParser, parse_config_values
from server.arguments.vlm_flags import add_vlm_inference_args
from server.errors import ConfigurationError

OUR_GROUPS = ("model", "server", "engine", "vision-language models", "command", "help")


@dataclass(frozen=True)
class TypedArguments:
    """What the command line and the config file gave, by destination, and nothing else."""

    command_line: Mapping[str, Any]
    config_file: Mapping[str, Any]


class ServeParser:
    """Parses `serve`'s command line. defaults: what the parser gives every argument, by destination."""

    def __init__(self) -> None:
        self._parser = _build()
        self.defaults: Mapping[str, Any] = vars(self._parser.parse_args([]))
        for action in self._parser._actions:
            action.default = argparse.SUPPRESS

    def parse(self, argv: Sequence[str]) -> TypedArguments:
        """Raises ConfigurationError for unknown flags, wrong values, and a config file that is missing or wrong."""
        typed, unknown = self._parser.parse_known_args(list(argv))
        if unknown:
            raise ConfigurationError(f"unknown argument {unknown[0]}{self._suggestion(unknown[0])}")
        command_line = vars(typed)
        path = command_line.get("config")
        return TypedArguments(command_line, {} if path is None else self._parse_config_file(path))

    def help_text(self, *, everything: bool) -> str:
        """The flags people use, or all of them."""
        if everything:
            return self._parser.format_help()
        formatter = self._parser._get_formatter()
        formatter.add_usage("%(prog)s --load DIR [options]", [], [], prefix="usage: ")
        for group in self._parser._action_groups:
            if group.title in OUR_GROUPS:
                formatter.start_section(group.title)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        formatter.add_text("Every boolean has a --no- form. --help-all shows Megatron's own arguments.")
        return formatter.format_help()

    def _parse_config_file(self, path: str) -> dict[str, Any]:
        named = read_config_file(Path(path))
        for name in named:
            if name not in self.defaults or name in ("config", "help_all", "print_resolved_args"):
                raise ConfigurationError(f"--config {path}: unknown key {name}{self._suggestion(name)}")
        return parse_config_values(self._parser, named, path)

    def _suggestion(self, given: str) -> str:
        flag = "--" + given.removeprefix("--").partition("=")[0].replace("_", "-")
        close = difflib.get_close_matches(flag, self._parser._option_string_actions, n=1)
        return f"; did you mean {close[0]}?" if close else "; --help-all lists all arguments"


def _build() -> QuietParser:
    parser = QuietParser(prog="megaserve serve", allow_abbrev=False, add_help=False)
    add_megatron_arguments(parser)
    add_model_args(parser)
    add_server_args(parser)
    add_engine_args(parser)
    add_vlm_inference_args(parser)
    add_command_args(parser)
    parser.add_argument("-h", "--help", action="store_true", help=argparse.SUPPRESS)
    say_booleans_both_ways(parser)
    _escape_percent_signs(parser)
    return parser


def _escape_percent_signs(parser: argparse.ArgumentParser) -> None:
    """Some of Megatron's help texts have a bare %, which argparse takes for a conversion and crashes on."""
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS:
            action.help = re.sub(r"%%|%(?!\()", "%%", action.help)

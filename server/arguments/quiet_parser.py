"""An argument parser that raises its errors, and reads values of a config file by the same rules. Torch-free."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from server.errors import ConfigurationError


class QuietParser(argparse.ArgumentParser):
    """Raises ConfigurationError where argparse would print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(message)


def parse_config_values(parser: QuietParser, named: dict[str, Any], path: str) -> dict[str, Any]:
    """Convert values of a config file as the command line would. Raises ConfigurationError naming file and key."""
    values: dict[str, Any] = {}
    for name, value in named.items():
        try:
            values[name] = None if value is None else vars(parser.parse_args(_as_arguments(parser, name, value)))[name]
        except ConfigurationError as error:
            raise ConfigurationError(f"--config {path}: {name}: {error}") from error
    return values


def _as_arguments(parser: QuietParser, name: str, value: Any) -> list[str]:
    actions = [action for action in parser._actions if action.dest == name]
    if isinstance(value, dict):
        raise ConfigurationError("must be a single value or a list")
    if isinstance(value, bool):
        return [_boolean_flag(actions, value)]
    flag = next((a.option_strings[0] for a in actions if a.nargs != 0), None)
    if flag is None or isinstance(actions[0], argparse.BooleanOptionalAction):
        raise ConfigurationError(f"must be true or false, not {value!r}")
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [f"{flag}={value}"]


def _boolean_flag(actions: list[argparse.Action], value: bool) -> str:
    for action in actions:
        if isinstance(action, argparse.BooleanOptionalAction):
            return next(flag for flag in action.option_strings if flag.startswith("--no-") is not value)
        if action.nargs == 0 and action.const is value:
            return action.option_strings[0]
    raise ConfigurationError(f"is not a boolean, so it cannot be {str(value).lower()}")

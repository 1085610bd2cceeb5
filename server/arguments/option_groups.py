"""Adds arguments to a parser that may have some of them already, and lets every boolean be said both ways.

Torch-free.
"""

from __future__ import annotations

import argparse
from typing import Any


class OptionGroup:
    """A titled group of arguments that we add.

    An argument whose destination the parser has already (Megatron's `--chat-template`) is taken over: it keeps its
    flags and gets our default and help, and the flag of its destination if it lacked that.
    """

    def __init__(self, parser: argparse.ArgumentParser, title: str) -> None:
        self._parser = parser
        self._group = parser.add_argument_group(title)

    def add(self, name: str, default: Any, help: str, **options: Any) -> None:
        """`name` is the destination; the flag is the same with hyphens."""
        flag = flag_of(name)
        existing = next((action for action in self._parser._actions if action.dest == name), None)
        if existing is not None:
            self._take_over(existing, flag, default, help)
            existing.metavar = options.get("metavar", existing.metavar)
        elif isinstance(default, bool):
            self._group.add_argument(
                flag, dest=name, action=argparse.BooleanOptionalAction, default=default, help=help, **options
            )
        else:
            self._group.add_argument(flag, dest=name, default=default, help=help, **options)

    def _take_over(self, action: argparse.Action, flag: str, default: Any, help: str) -> None:
        action.default = default
        action.help = help
        if flag not in self._parser._option_string_actions:
            action.option_strings = [*action.option_strings, flag]
            self._parser._option_string_actions[flag] = action
        for group in self._parser._action_groups:
            if action in group._group_actions:
                group._group_actions.remove(action)
        self._group._group_actions.append(action)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def say_booleans_both_ways(parser: argparse.ArgumentParser) -> None:
    """Give every boolean that can only be switched one way the other way, too.

    `--swiglu` gets `--no-swiglu`; `--disable-bias-linear` gets `--bias-linear`; and both `--add-bias-linear` and
    `--no-add-bias-linear`, after the destination, are understood. Added forms are left out of the help.
    """
    for action in list(parser._actions):
        if isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction):
            for flag, value in _other_forms(action):
                _add_hidden(parser, flag, action.dest, value)
    _require_both(parser)


def _other_forms(action: argparse.Action) -> list[tuple[str, bool]]:
    value = isinstance(action, argparse._StoreTrueAction)
    forms = [(_opposite(flag), not value) for flag in action.option_strings]
    return [*forms, (flag_of(action.dest), True), (flag_of(f"no_{action.dest}"), False)]


def _opposite(flag: str) -> str:
    name = flag.removeprefix("--")
    for negative in ("no-", "disable-"):
        if name.startswith(negative):
            return f"--{name.removeprefix(negative)}"
        if f"-{negative}" in name:
            return f"--{name.replace(f'-{negative}', '-', 1)}"
    return f"--no-{name}"


def _add_hidden(parser: argparse.ArgumentParser, flag: str, dest: str, value: bool) -> None:
    if flag not in parser._option_string_actions:
        action = "store_true" if value else "store_false"
        parser.add_argument(flag, dest=dest, action=action, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _require_both(parser: argparse.ArgumentParser) -> None:
    """Where another argument owns the natural flag, `--enable-x` and `--disable-x` are left."""
    switches = [
        action
        for action in parser._actions
        if isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction)
    ]
    for wanted, prefix in ((True, "enable_"), (False, "disable_")):
        able = {action.dest for action in switches if action.const is wanted}
        for dest in {action.dest for action in switches} - able:
            _add_hidden(parser, flag_of(prefix + dest), dest, wanted)

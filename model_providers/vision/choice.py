"""Arguments that take one of a few names."""

from __future__ import annotations

from model_providers.errors import UnsupportedModelError


def one_of[Name: str](argument: str, value: object, known: tuple[Name, ...]) -> Name:
    """`value` as one of `known`. Raises UnsupportedModelError naming the argument."""
    for name in known:
        if value == name:
            return name
    raise UnsupportedModelError(argument, f"{value!r} is not one of {', '.join(known)}")

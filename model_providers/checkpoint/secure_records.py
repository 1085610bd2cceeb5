"""Inert records: what stands in for an object of a class that a checkpoint names and we do not admit.

A record remembers the class's name and the data the file held for it. Nothing of the class is imported, so nothing of
it can run.
"""

from __future__ import annotations

import importlib
from enum import Enum
from typing import Any, Self, cast


class _NamedByOrigin(type):
    def __repr__(cls) -> str:
        return f"<{cls.origin}, not loaded>"  # type: ignore[attr-defined]


class InertRecord(metaclass=_NamedByOrigin):
    """An object that was not built.

    origin: the class's dotted name. arguments: what its constructor would have got. state: what it would have been
    restored from, None where the file holds none.
    """

    origin: str = "unknown"
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any, **_keywords: Any) -> Self:
        record = super().__new__(cls)
        record.arguments = arguments
        record.state = None
        return record

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        """Takes whatever the file has; `__new__` kept it."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"<{self.origin}, not loaded>"


def inert_class(origin: str) -> type[InertRecord]:
    """A class of records for the dotted name `origin`."""
    return cast("type[InertRecord]", _NamedByOrigin("InertRecord", (InertRecord,), {"origin": origin}))


def is_inert(value: Any) -> bool:
    """Whether `value` is a record, or stands for a class or function that was not loaded."""
    return isinstance(value, InertRecord | _NamedByOrigin)


class EnumStandIn:
    """Stands for one of Megatron's enumerations while a file is read.

    Calling it looks the member up; a value this installation does not know becomes a record instead of an error, so a
    checkpoint of a newer Megatron still opens.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    @property
    def origin(self) -> str:
        return f"{self.module}.{self.name}"

    def __call__(self, value: Any) -> Any:
        try:
            return self._enumeration()(value)
        except (AttributeError, ImportError, ValueError):
            return inert_class(self.origin)(value)

    def member(self, name: str) -> Any:
        try:
            return self._enumeration()[name]
        except (AttributeError, ImportError, KeyError):
            return inert_class(self.origin)(name)

    def _enumeration(self) -> type[Enum]:
        found = getattr(importlib.import_module(self.module), self.name)
        if not (isinstance(found, type) and issubclass(found, Enum)):
            raise AttributeError(f"{self.origin} is not an enumeration")
        return found


def enum_member(enumeration: Any, name: str) -> Any:
    """What `getattr` may do in a checkpoint: Python 3.11 pickles a member of an enumeration as getattr(class, name)."""
    if isinstance(enumeration, EnumStandIn):
        return enumeration.member(name)
    if isinstance(enumeration, type) and issubclass(enumeration, Enum):
        return enumeration.__members__[name]
    if is_inert(enumeration):
        return inert_class(f"{enumeration.origin}.{name}")()
    raise TypeError("getattr is admitted on enumerations alone")

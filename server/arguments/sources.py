"""One argument at a time, the highest source that says anything wins. Pure and total."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from model_providers.checkpoint.peek_values import json_value
from server.arguments.classification import classify
from server.config import ResolvedArgument, Source

# Highest first. `derived` stands outside: it follows from other arguments' final values.
RANKED: tuple[Source, ...] = ("command_line", "config_file", "checkpoint", "model", "default")


@dataclass
class Entry:
    """An argument while it is being resolved. said: what each source said, in JSON types."""

    name: str
    said: Mapping[Source, Any]
    value: Any
    source: Source
    notes: list[str] = field(default_factory=list)

    def derive(self, value: Any, note: str) -> None:
        """Replace the value by what follows from other arguments; nothing changes where they agree."""
        if value == self.value:
            return
        self.value, self.source = value, "derived"
        self.notes.append(note)

    def imply(self, value: Any, note: str) -> None:
        """What the model's name implies, over all but what was typed; nothing changes where they agree."""
        if self.typed or value == self.value:
            return
        self.value, self.source = value, "model"
        self.notes.append(note)

    def note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    @property
    def typed(self) -> bool:
        """On the command line or in the config file."""
        return "command_line" in self.said or "config_file" in self.said

    @property
    def overridden(self) -> bool:
        """Whether a source of lower rank, other than the parser's default, said something else."""
        # What a model's name implies stands over the checkpoint where it differs from it, and under it elsewhere.
        lower = RANKED if self.source in ("derived", "model") else RANKED[RANKED.index(self.source) + 1 :]
        return any(source in self.said and self.said[source] != self.value for source in lower if source != "default")

    def resolved(self) -> ResolvedArgument:
        return ResolvedArgument(
            arg=self.name,
            value=self.value,
            source=self.source,
            command_line=self.said.get("command_line"),
            config_file=self.said.get("config_file"),
            checkpoint=self.said.get("checkpoint"),
            default=self.said.get("default"),
            overridden=self.overridden,
            note="; ".join(self.notes),
        )


class Entries:
    """All arguments, by destination."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def value(self, name: str) -> Any:
        return self._entries[name].value

    @property
    def values(self) -> dict[str, Any]:
        return {entry.name: entry.value for entry in self}


def choose(name: str, sources: Mapping[Source, Mapping[str, Any]]) -> Entry:
    """The entry of one argument.

    A checkpoint's value counts only for arguments that describe the model, and None there says nothing: Megatron stores
    None where nothing was given.
    """
    said: dict[Source, Any] = {
        source: json_value(sources[source][name]) for source in RANKED if name in sources[source]
    }
    if said.get("checkpoint") is None:
        said.pop("checkpoint", None)
    usable = [s for s in RANKED if s in said and (s != "checkpoint" or classify(name).from_checkpoint)]
    entry = Entry(name, said, said[usable[0]], usable[0])
    if "checkpoint" in said and "checkpoint" not in usable and said["checkpoint"] != entry.value and not entry.typed:
        entry.note(f"the training run's {said['checkpoint']!r} is not taken over")
    return entry

"""What serving does with each argument: the table `megatron_arguments.toml`, and our own arguments.

Torch-free.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from model_providers.vlm_arguments import VLM_ARGUMENTS
from server.config import EngineConfig, ServerConfig

Category = Literal["architecture", "tokenizer", "vision", "numerics", "runtime", "engine", "server", "command"]
Effect = Literal["used", "none", "refused", "mapped"]

# These categories are taken from the checkpoint when neither the command line nor the config file says anything.
FROM_CHECKPOINT: frozenset[Category] = frozenset({"architecture", "tokenizer", "vision", "numerics"})
# What the command itself reads: they name other sources or what to print.
COMMAND_ARGUMENTS = ("config", "print_resolved_args")
# Not flags: Megatron computes them from flags, saves them, and reads them again.
COMPUTED_ARGUMENTS = ("params_dtype",)


@dataclass(frozen=True)
class ArgumentClass:
    """category and effect: see the table. group: its title there. reason: why typing the argument does nothing."""

    category: Category
    effect: Effect
    group: str
    reason: str = ""

    @property
    def from_checkpoint(self) -> bool:
        return self.category in FROM_CHECKPOINT


@cache
def megatron_classes() -> dict[str, ArgumentClass]:
    """Megatron's arguments by destination; ValueError when the table lists one twice."""
    table = tomllib.loads(files("server.arguments").joinpath("megatron_arguments.toml").read_text("utf-8"))
    classes: dict[str, ArgumentClass] = {}
    for group in table["group"]:
        entry = ArgumentClass(group["category"], group.get("effect", "used"), group["title"], group.get("reason", ""))
        for name in group["names"].split():
            if name in classes:
                raise ValueError(f"{name} is in the table twice: {classes[name].group} and {entry.group}")
            classes[name] = entry
    return classes


@cache
def our_classes() -> dict[str, ArgumentClass]:
    """Arguments that this project adds."""
    classes = {flag.name: ArgumentClass("vision", "used", "images") for flag in VLM_ARGUMENTS}
    classes |= {f.name: ArgumentClass("engine", "used", "engine") for f in dataclasses.fields(EngineConfig)}
    classes |= {f.name: ArgumentClass("server", "used", "server") for f in dataclasses.fields(ServerConfig)}
    classes |= {name: ArgumentClass("numerics", "used", "number format") for name in COMPUTED_ARGUMENTS}
    return classes | {name: ArgumentClass("command", "used", "command") for name in COMMAND_ARGUMENTS}


def classify(name: str) -> ArgumentClass:
    """The class of an argument by its destination; KeyError for one that is in neither table.

    An argument of ours that Megatron's parser has too (`chat_template`, `special_tokens`) is ours.
    """
    return our_classes()[name] if name in our_classes() else megatron_classes()[name]

"""The server's own arguments. Torch-free: the HTTP process reads them before anything heavy is imported."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, get_args, get_type_hints

from server.arguments.option_groups import OptionGroup
from server.config import EngineConfig, ServerConfig


def add_server_args(parser: argparse.ArgumentParser) -> None:
    """One argument per field of ServerConfig."""
    _add_fields(OptionGroup(parser, "server"), ServerConfig)


def add_engine_args(parser: argparse.ArgumentParser) -> None:
    """One argument per field of EngineConfig."""
    _add_fields(OptionGroup(parser, "engine"), EngineConfig)


def add_model_args(parser: argparse.ArgumentParser) -> None:
    """Which model to serve, and over how many ranks. Megatron's parser has these too; they mean the same."""
    group = OptionGroup(parser, "model")
    group.add(
        "load",
        None,
        "Checkpoint directory: one with a tracker file, or a single iteration's directory.",
        metavar="DIR",
    )
    group.add("ckpt_step", None, "Iteration to load. Default: the one the tracker file names.", type=int)
    group.add(
        "tokenizer_model",
        None,
        "Directory with tokenizer.json, or that file. Default: the checkpoint's own, see the documentation.",
        metavar="PATH",
    )
    group.add("tensor_model_parallel_size", 1, "Ranks that one model is divided among.", type=int)


def add_command_args(parser: argparse.ArgumentParser) -> None:
    """Where else to read arguments from, and what to print."""
    group = OptionGroup(parser, "command")
    group.add("config", None, "YAML file of arguments; the command line has precedence over it.", metavar="FILE")
    group.add(
        "print_resolved_args",
        None,
        "Print every argument with its source, and the detected kind of model, then exit: 0, or 3 on conflicts. "
        "json: as one JSON document.",
        nargs="?",
        const="table",
        choices=["table", "json"],
    )
    parser.add_argument_group("help").add_argument(
        "--help-all", action="store_true", help="Show all of Megatron's arguments, too, and exit."
    )


def _add_fields(group: OptionGroup, config: type[EngineConfig | ServerConfig]) -> None:
    types = get_type_hints(config)
    for field in dataclasses.fields(config):
        options: dict[str, Any] = dict(field.metadata["argparse"])
        if not isinstance(field.default, bool):
            options.setdefault("type", _parser_type(types[field.name]))
        group.add(field.name, field.default, field.metadata["help"], **options)


def _parser_type(annotation: Any) -> Any:
    """`int` for `int | None`."""
    return next((arm for arm in get_args(annotation) if arm is not type(None)), annotation)

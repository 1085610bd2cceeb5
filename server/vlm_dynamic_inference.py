"""The names of Megatron-LM's module of the same name, over this project's resolution and providers.

For scripts written against examples/multimodal's dynamic inference: the same calls, and a true provenance. The image
side of that module is `image_preprocessing`, from which the parts that scripts use are re-exported.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import msgspec

from image_preprocessing.pipeline import PreparedImage, prepare_image
from image_preprocessing.plan import plan_image
from image_preprocessing.settings import ImageSettings
from model_providers import get_model as _provide
from model_providers.checkpoint.peek import peek
from model_providers.checkpoint.peek_values import megatron_values
from server.arguments.parser import ServeParser, TypedArguments
from server.arguments.resolve import resolve
from server.arguments.resolve_command import this_machine, tokenizer_of
from server.arguments.vlm_flags import add_vlm_inference_args
from server.config import EngineConfig, ResolvedDocument
from server.engine.build import model_config_of
from server.errors import ConfigurationError

__all__ = [
    "ImageSettings",
    "PreparedImage",
    "_detect_vlm_from_checkpoint",
    "_print_resolved_args",
    "add_vlm_inference_args",
    "get_model",
    "plan_image",
    "prepare_image",
]


def _detect_vlm_from_checkpoint(args: Namespace, user_passed_attrs: Iterable[str] | None = None) -> bool:
    """Resolve `args` in place from the checkpoint at `args.load` -> whether that is a vision-language model.

    user_passed_attrs: the destinations that were typed; by default those whose value is not the parser's default. Every
    argument of `args` gets its resolved value; `args._vlm_arg_resolution` says of each where it came from, and
    `args._resolved_document` is the whole. Raises ConfigurationError when arguments contradict each other,
    CheckpointError for a checkpoint that cannot be read.
    """
    defaults = ServeParser().defaults
    given = vars(args)
    if user_passed_attrs is None:
        typed = {name: value for name, value in given.items() if name in defaults and value != defaults[name]}
    else:
        typed = {name: given[name] for name in user_passed_attrs if name in defaults}
    checkpoint = peek(Path(args.load), given.get("ckpt_step"))
    typed["load"] = args.load
    document = resolve(TypedArguments(typed, {}), defaults, checkpoint, tokenizer_of(checkpoint, typed), this_machine())
    if document.conflicts:
        raise ConfigurationError("; ".join(conflict.message for conflict in document.conflicts))
    for name, value in megatron_values(document.values).items():
        setattr(args, name, value)
    args._vlm_arg_resolution = {a.arg: msgspec.to_builtins(a) for a in document.arguments}
    args._resolved_document = document
    return document.kind == "vlm"


def get_model(is_vlm: bool, args: Namespace | None = None) -> Any:
    """Build and load the model of the last detection on `args`, by default Megatron's global arguments.

    Megatron's process groups must exist. Raises ConfigurationError when nothing was detected on the arguments, or
    another kind of model than `is_vlm` says.
    """
    if args is None:
        from megatron.training import get_args

        args = get_args()
    document = getattr(args, "_resolved_document", None)
    if not isinstance(document, ResolvedDocument):
        raise ConfigurationError("call _detect_vlm_from_checkpoint(args) first: it finds out what to build")
    if is_vlm != (document.kind == "vlm"):
        raise ConfigurationError(f"the checkpoint holds a {document.kind}: {'; '.join(document.reasons)}")
    return _provide(is_vlm, model_config_of(document, EngineConfig.from_values(document.values)))


def _print_resolved_args(title: str, args: Namespace, file: TextIO | None = None) -> None:
    """Megatron's table of arguments, each with the source of its value behind it."""
    out = sys.stdout if file is None else file
    resolution = getattr(args, "_vlm_arg_resolution", {})
    print(f"------------------------ {title} ------------------------", file=out)
    for name, value in sorted(vars(args).items(), key=lambda item: item[0].lower()):
        if not name.startswith("_"):
            source = resolution.get(name, {}).get("source", "").replace("_", " ")
            print(f"  {name} {'.' * max(1, 48 - len(name))} {value}{f'  ({source})' if source else ''}", file=out)
    print(f"-------------------- end of {title} ---------------------", file=out)

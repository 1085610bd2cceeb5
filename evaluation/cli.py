"""`megaserve evaluate`: the command line of the evaluation client."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from evaluation.errors import EvaluationError, ExitStatus
from evaluation.evaluate import evaluate, merge
from evaluation.flags import API_KEY_VARIABLE, build_parser
from evaluation.flags_by_request_type import refuse_or_complete, without_defaults
from evaluation.keys import GenerationParameters
from evaluation.options import EvaluateOptions, FailureLimit, OfflineOptions, RowChoice
from evaluation.shard import Shard
from evaluation.thinking import COMPATIBLE_TAGS, ThinkingSplit, split_think_of_environment

_OF_SERVERS = ("api_key", "wait_for_ranks")
_OF_OFFLINE = ("tensor_model_parallel_size", "pad_requests", "barrier_timeout")
_BESIDE_MERGE = ("merge", "scorer", "fail_on_error", "export", "report")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status. `argv`: without the program's name; None takes sys.argv."""
    parser = build_parser()
    arguments, engine_arguments = parser.parse_known_args(argv, without_defaults())
    refuse_or_complete(parser, arguments)
    if engine_arguments and not arguments.offline:
        parser.error(f"unrecognized arguments: {' '.join(engine_arguments)}")
    try:
        if arguments.merge is not None:
            _refuse_beside_merge(parser, arguments)
            return merge(
                arguments.merge,
                arguments.scorer,
                arguments.fail_on_error or FailureLimit(),
                arguments.export,
                report=arguments.report,
            )
        _require(parser, arguments)
        return evaluate(_options(arguments, engine_arguments))
    except EvaluationError as error:
        print(f"megaserve evaluate: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("megaserve evaluate: interrupted", file=sys.stderr)
        return ExitStatus.INTERRUPTED


def thinking_of(arguments: argparse.Namespace) -> ThinkingSplit | None:
    """What --thinking and --thinking-tags say; None when they, and SPLIT_THINK, say nothing."""
    mode, tags = arguments.thinking, arguments.thinking_tags
    if mode is None and not tags and not split_think_of_environment():
        return None
    if mode is None:
        mode = "tags" if tags else "vlmevalkit"
    return ThinkingSplit(mode, tuple((opening, closing) for opening, closing in tags or [COMPATIBLE_TAGS]))


def _options(arguments: argparse.Namespace, engine_arguments: Sequence[str]) -> EvaluateOptions:
    values = vars(arguments)
    values["offline"] = _offline_options(values, engine_arguments)
    values["server"] = values["server"] or ""
    thinking = thinking_of(arguments) or ThinkingSplit()
    for name in ("merge", "thinking", "thinking_tags"):
        del values[name]
    parameters = {name: values.pop(name) for name in GenerationParameters.__dataclass_fields__}
    parameters["stop"] = tuple(parameters["stop"])
    values["rows"] = RowChoice(ids=values.pop("ids"), where=tuple(values.pop("where")))
    values["exports"] = tuple(values.pop("export"))
    values["fail_on_error"] = values["fail_on_error"] or FailureLimit()
    values["api_key"] = values["api_key"] or os.environ.get(API_KEY_VARIABLE) or None
    shard = Shard.of_environment(os.environ)
    return EvaluateOptions(parameters=GenerationParameters(**parameters), thinking=thinking, shard=shard, **values)


def _offline_options(values: dict[str, Any], engine_arguments: Sequence[str]) -> OfflineOptions | None:
    """Taken out of `values`; None where a server is asked."""
    own = {name: values.pop(name) for name in OfflineOptions.__dataclass_fields__ if name in values}
    if not values["offline"]:
        return None
    return OfflineOptions(engine_arguments=tuple(one for one in engine_arguments if one != "--"), **own)


def _require(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    source, other = ("load", "server") if arguments.offline else ("server", "load")
    missing = [f"--{name}" for name in (source, "data", "output") if getattr(arguments, name) is None]
    if missing:
        parser.error(f"needs {', '.join(missing)} (or --merge RUN alone)")
    belonging = _OF_SERVERS if arguments.offline else _OF_OFFLINE
    if given := [name for name in belonging if getattr(arguments, name) != parser.get_default(name)]:
        flag = f"--{given[0].replace('_', '-')}"
        parser.error(f"--offline takes no {flag}" if arguments.offline else f"{flag} needs --offline")
    if getattr(arguments, other) is not None:
        parser.error(
            "--offline takes --load CHECKPOINT and no --server" if arguments.offline else "--load needs --offline"
        )


def _refuse_beside_merge(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(arguments).items()
        if name not in _BESIDE_MERGE and value != parser.get_default(name)
    ]
    if given:
        allowed = ", ".join(f"--{name.replace('_', '-')}" for name in _BESIDE_MERGE[1:])
        parser.error(f"--merge RUN takes only {allowed} beside it, not {', '.join(given)}")

"""`megaserve evaluate`: the command line of the evaluation client."""

from __future__ import annotations

import argparse
import os
import sys

from evaluation.errors import EvaluationError, ExitStatus
from evaluation.evaluate import evaluate, merge
from evaluation.flags import API_KEY_VARIABLE, build_parser
from evaluation.keys import GenerationParameters
from evaluation.options import EvaluateOptions, FailureLimit, RowChoice
from evaluation.shard import Shard
from evaluation.thinking import COMPATIBLE_TAGS, ThinkingSplit, split_think_of_environment

_BESIDE_MERGE = ("merge", "scorer", "fail_on_error", "export", "report")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status. `argv`: without the program's name; None takes sys.argv."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
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
        return evaluate(_options(arguments))
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


def _options(arguments: argparse.Namespace) -> EvaluateOptions:
    values = vars(arguments)
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


def _require(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    missing = [f"--{name}" for name in ("server", "data", "output") if getattr(arguments, name) is None]
    if missing:
        parser.error(f"needs {', '.join(missing)} (or --merge RUN alone)")


def _refuse_beside_merge(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(arguments).items()
        if name not in _BESIDE_MERGE and value != parser.get_default(name)
    ]
    if given:
        allowed = ", ".join(f"--{name.replace('_', '-')}" for name in _BESIDE_MERGE[1:])
        parser.error(f"--merge RUN takes only {allowed} beside it, not {', '.join(given)}")

"""`megaserve evaluate`: the command line of the evaluation client."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from urllib.parse import urlsplit

from evaluation.errors import EvaluationError, ExitStatus
from evaluation.evaluate import EvaluateOptions, evaluate, merge
from evaluation.keys import GenerationParameters
from evaluation.scorers import ScorerName

EPILOG = """\
The same command resumes an interrupted run: what has an answer in RUN is not asked again, whatever the concurrency.

exit status:
  0  complete: every row has its outcome, and none of the failed ones could pass if asked again
  1  incomplete: run the same command again
  2  nothing was asked: usage, data, server or run directory; or RUN belongs to another model, data or parameters
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status. `argv`: without the program's name; None takes sys.argv."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        if arguments.merge is not None:
            _refuse_beside_merge(parser, arguments)
            return merge(arguments.merge, arguments.scorer)
        _require(parser, arguments)
        return evaluate(_options(arguments))
    except EvaluationError as error:
        print(f"megaserve evaluate: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("megaserve evaluate: interrupted", file=sys.stderr)
        return ExitStatus.INCOMPLETE


def build_parser() -> argparse.ArgumentParser:
    """Every flag of the command. Defaults are those of `EvaluateOptions` and `GenerationParameters`."""
    parser = argparse.ArgumentParser(
        prog="megaserve evaluate",
        description="Ask a server every question of a data file, keep every answer, and score them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run = parser.add_argument_group("run")
    run.add_argument("--server", type=_url, metavar="URL", help="where the server listens, as http://127.0.0.1:8000")
    run.add_argument("--data", type=Path, metavar="FILE", help="questions: VLMEvalKit's .tsv, or .jsonl")
    run.add_argument("--output", type=Path, metavar="RUN", help="run directory: created, or resumed")
    run.add_argument("--merge", type=Path, metavar="RUN", help="only write summary, scores and export of RUN again")
    run.add_argument("--limit", type=_positive, metavar="N", help="only the first N rows")
    run.add_argument(
        "--scorer", type=ScorerName, choices=list(ScorerName), default=ScorerName.AUTO, help="default: %(default)s"
    )
    run.add_argument("--prompt-template", type=Path, metavar="FILE", help="Jinja: question, hint, options, row")
    run.add_argument(
        "--retry-failed",
        action=argparse.BooleanOptionalAction,
        help="ask again every failed row, or none; default: those that could pass now",
    )
    run.add_argument("--new-run", "--force-new", action="store_true", help="set earlier contents of RUN aside")
    _add_sampling(parser)
    _add_requests(parser)
    return parser


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    defaults = GenerationParameters()
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-new-tokens", type=_positive, default=defaults.max_new_tokens, metavar="N", help="default: %(default)s"
    )
    group.add_argument(
        "--temperature", type=_not_negative, default=defaults.temperature, metavar="T", help="default: 0, greedy"
    )
    group.add_argument(
        "--top-p", type=_fraction, default=defaults.top_p, metavar="P", help="in (0, 1]; default: 1, off"
    )
    group.add_argument("--seed", type=int, metavar="N", help="default: none")


def _add_requests(parser: argparse.ArgumentParser) -> None:
    defaults = EvaluateOptions.__dataclass_fields__
    group = parser.add_argument_group("requests")
    for flag, kind, meta, text in (
        ("--concurrency", _positive, "N", "questions under way at a time"),
        ("--timeout", _seconds, "SECONDS", "for one request, from its dispatch on"),
        ("--server-wait", _seconds, "SECONDS", "for a server that loads, restarts, or answers 429 or 503"),
        ("--max-attempts", _positive, "N", "requests for one row, not counting 429 and 503"),
    ):
        default = defaults[flag.removeprefix("--").replace("-", "_")].default
        group.add_argument(flag, type=kind, default=default, metavar=meta, help=f"{text}; default: %(default)s")


def _options(arguments: argparse.Namespace) -> EvaluateOptions:
    values = vars(arguments)
    parameters = {name: values.pop(name) for name in GenerationParameters.__dataclass_fields__}
    values.pop("merge")
    return EvaluateOptions(parameters=GenerationParameters(**parameters), **values)


def _require(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    missing = [f"--{name}" for name in ("server", "data", "output") if getattr(arguments, name) is None]
    if missing:
        parser.error(f"needs {', '.join(missing)} (or --merge RUN alone)")


def _refuse_beside_merge(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(arguments).items()
        if name not in ("merge", "scorer") and value != parser.get_default(name)
    ]
    if given:
        parser.error(f"--merge RUN takes only --scorer beside it, not {', '.join(given)}")


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL like http://127.0.0.1:8000")
    return text.rstrip("/")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def _not_negative(text: str) -> float:
    if (value := _number(text)) < 0:
        raise argparse.ArgumentTypeError(f"{value:g} is negative")
    return value


def _seconds(text: str) -> float:
    if (value := _number(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{value:g} is not positive")
    return value


def _fraction(text: str) -> float:
    if not 0 < (value := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{value:g} is not in (0, 1]")
    return value

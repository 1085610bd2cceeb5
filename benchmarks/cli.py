"""`megaserve bench`: the command line of the benchmarks."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.errors import BenchmarkError
from benchmarks.options import HUGGING_FACE_BATCH_SIZES, Options
from benchmarks.report import check_json_path, print_table, write_json
from benchmarks.workload import PROMPT_LENGTHS

_EPILOG = """\
Arguments after `--` go to the server as they are, as in: megaserve bench http -- --tensor-model-parallel-size 2

exit status: 0 measured, 1 the measurement failed, 2 nothing was measured (usage, checkpoint, file for the result)
"""

Run = Callable[[Options], dict[str, Any]]


def main(argv: list[str] | None = None) -> int:
    """Measure, print a table, and return the exit status. `argv`: without the program's name; None takes sys.argv."""
    options, run = parse(sys.argv[1:] if argv is None else argv)
    try:
        if options.json is not None:
            check_json_path(options.json)
        result = run(options)
        print_table(result, Console())
        if options.json is not None:
            write_json(options.json, result)
    except BenchmarkError as error:
        print(f"megaserve bench: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("megaserve bench: interrupted", file=sys.stderr)
        return 130
    return 0


def parse(argv: list[str]) -> tuple[Options, Run]:
    """Raises SystemExit with status 2 for wrong usage, as argparse does."""
    at = argv.index("--") if "--" in argv else len(argv)
    values = vars(build_parser().parse_args(argv[:at]))
    benchmark = values.pop("benchmark")
    if "compare_hf" in values:
        given = values["compare_hf"]
        values["compare_hf"] = given is not None
        values["hf_directory"] = given if isinstance(given, Path) else None
    return Options(**values, extra=tuple(argv[at + 1 :])), _RUNS[benchmark]


def _offline(options: Options) -> dict[str, Any]:
    from benchmarks.offline import run_offline  # a second of imports, which --help need not wait for

    return run_offline(options)


def _http(options: Options) -> dict[str, Any]:
    from benchmarks.online import run_http

    return run_http(options)


_RUNS: dict[str, Run] = {"offline": _offline, "http": _http}


def build_parser() -> argparse.ArgumentParser:
    """Every flag of the command; defaults are those of `Options`."""
    parser = argparse.ArgumentParser(
        prog="megaserve bench",
        description="Measure throughput, latency and memory with greedy decoding of fixed prompts.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="offline|http")
    offline = commands.add_parser("offline", help="the engine without HTTP, all requests at once", allow_abbrev=False)
    _add_common(offline)
    sizes = " and ".join(map(str, HUGGING_FACE_BATCH_SIZES))
    offline.add_argument(
        "--compare-hf",
        nargs="?",
        type=Path,
        const=True,
        metavar="DIR",
        help=f"measure Hugging Face's generate, too, in batches of {sizes}; "
        "DIR holds the weights of --load in its format",
    )
    http = commands.add_parser("http", help="a server of its own, as its clients see it", allow_abbrev=False)
    _add_common(http)
    http.add_argument(
        "--concurrency", type=_positive, default=_default("concurrency"), metavar="N", help="default: %(default)s"
    )
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--load", type=Path, metavar="DIR", help="Megatron checkpoint; default: SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], help="default: fp32 on a CPU")
    parser.add_argument("--threads", type=_positive, metavar="N", help="default: the cores this process may use")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole result there")
    for flag, kind, text in (
        ("--repetitions", _positive, "timed runs, of which the median counts"),
        ("--max-new-tokens", _at_least_two, "generated per prompt"),
        ("--num-prompts", _num_prompts, f"the first N of {len(PROMPT_LENGTHS)}"),
        ("--quiet-wait", _seconds, "wait so many seconds at most, before each run, for other processes to pause"),
    ):
        name = flag.removeprefix("--").replace("-", "_")
        parser.add_argument(flag, type=kind, default=_default(name), metavar="N", help=f"{text}; default: %(default)s")


def _default(name: str) -> object:
    return next(field.default for field in dataclasses.fields(Options) if field.name == name)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _at_least_two(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{value} is less than 2: there would be no decode step to time")
    return value


def _num_prompts(text: str) -> int:
    value = _positive(text)
    if value > len(PROMPT_LENGTHS):
        raise argparse.ArgumentTypeError(f"{value} is more than the workload's {len(PROMPT_LENGTHS)}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 on")
    return value

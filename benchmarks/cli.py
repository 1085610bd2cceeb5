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
from benchmarks.peers.catalog import PEER_NAMES
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
    if "peers" in values:
        values["peers"] = tuple(values["peers"])
    return Options(**values, extra=tuple(argv[at + 1 :])), _RUNS[benchmark]


def _offline(options: Options) -> dict[str, Any]:
    from benchmarks.offline import run_offline  # a second of imports, which --help need not wait for

    return run_offline(options)


def _http(options: Options) -> dict[str, Any]:
    from benchmarks.online import run_http

    return run_http(options)


def _vlm(options: Options) -> dict[str, Any]:
    from benchmarks.vlm import run_vlm

    return run_vlm(options)


def _images(options: Options) -> dict[str, Any]:
    from benchmarks.image_memory import run_images

    return run_images(options)


def _compare(options: Options) -> dict[str, Any]:
    from benchmarks.compare import run_compare

    return run_compare(options)


def _latency(options: Options) -> dict[str, Any]:
    from benchmarks.latency import run_latency

    return run_latency(options)


def _prefix(options: Options) -> dict[str, Any]:
    from benchmarks.prefix import run_prefix

    return run_prefix(options)


def _sweep(options: Options) -> dict[str, Any]:
    from benchmarks.sweep import run_sweep

    return run_sweep(options)


_RUNS: dict[str, Run] = {
    "offline": _offline,
    "http": _http,
    "vlm": _vlm,
    "images": _images,
    "compare": _compare,
    "latency": _latency,
    "prefix": _prefix,
    "sweep": _sweep,
}


def build_parser() -> argparse.ArgumentParser:
    """Every flag of the command; defaults are those of `Options`."""
    parser = argparse.ArgumentParser(
        prog="megaserve bench",
        description="Measure throughput, latency and memory with greedy decoding of fixed prompts.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="|".join(_RUNS))
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
    vlm = commands.add_parser("vlm", help="questions about pictures, in turn with Hugging Face", allow_abbrev=False)
    _add_settings(vlm)
    _add_repetitions(vlm)
    vlm.add_argument(
        "--num-questions",
        type=_positive,
        default=_default("num_questions"),
        metavar="N",
        help="the first N of easy-vqa's test split; default: %(default)s",
    )
    images = commands.add_parser("images", help="memory of a server that sees ever new pictures", allow_abbrev=False)
    _add_serving(images, "a LLaVA; default: the one in examples")
    _add_number(images, "--num-images", _at_least_forty, "distinct pictures")
    _add_compare(commands.add_parser("compare", help="other engines, in turn with this one", allow_abbrev=False))
    latency = commands.add_parser("latency", help="what one client waits for, beside others", allow_abbrev=False)
    _add_serving(latency, "Megatron checkpoint; default: SmolLM2-135M-Instruct")
    _add_repetitions(latency)
    prefix = commands.add_parser("prefix", help="choices that share a context, against lm-eval", allow_abbrev=False)
    _add_serving(prefix, "Megatron checkpoint; default: SmolLM2-135M-Instruct")
    _add_repetitions(prefix)
    _add_hf_directory(prefix)
    prefix.add_argument(
        "--num-questions",
        dest="num_choice_questions",
        type=_at_least_four,
        default=_default("num_choice_questions"),
        metavar="N",
        help="of four choices each; default: %(default)s",
    )
    sweep = commands.add_parser("sweep", help="how cost grows with batch, context and queue", allow_abbrev=False)
    _add_serving(sweep, "Megatron checkpoint; default: SmolLM2-135M-Instruct")
    _add_repetitions(sweep)
    _add_number(sweep, "--max-batch", _positive, "sequences at a time at most")
    _add_number(sweep, "--max-context", _positive, "tokens of a sequence at most")
    sweep.add_argument("--draw", type=Path, metavar="DIR", help="write the curves there as SVG files")
    return parser


def _add_compare(compare: argparse.ArgumentParser) -> None:
    _add_common(compare)
    _add_hf_directory(compare)
    compare.add_argument(
        "--peers",
        nargs="+",
        choices=PEER_NAMES,
        default=_default("peers"),
        metavar="PEER",
        help=f"of {', '.join(PEER_NAMES)}; default: transformers, and unquantized ones whose environment was made",
    )
    compare.add_argument("--only", choices=["in-process", "http"], help="leave the other half out")
    compare.add_argument(
        "--concurrency", type=_positive, default=_default("concurrency"), metavar="N", help="default: %(default)s"
    )


def _add_hf_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hf-directory", type=Path, metavar="DIR", help="the weights of --load for Hugging Face")


def _add_common(parser: argparse.ArgumentParser) -> None:
    _add_serving(parser, "Megatron checkpoint; default: SmolLM2-135M-Instruct")
    _add_repetitions(parser)
    for flag, kind, text in (
        ("--max-new-tokens", _at_least_two, "generated per prompt"),
        ("--num-prompts", _num_prompts, f"the first N of {len(PROMPT_LENGTHS)}"),
    ):
        _add_number(parser, flag, kind, text)


def _add_serving(parser: argparse.ArgumentParser, load: str) -> None:
    parser.add_argument("--load", type=Path, metavar="DIR", help=load)
    _add_settings(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], help="default: fp32 on a CPU")
    parser.add_argument("--threads", type=_positive, metavar="N", help="default: the cores this process may use")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole result there")


def _add_repetitions(parser: argparse.ArgumentParser) -> None:
    for flag, kind, text in (
        ("--repetitions", _positive, "timed runs, of which the median counts"),
        ("--quiet-wait", _seconds, "wait so many seconds at most, before each run, for other processes to pause"),
    ):
        _add_number(parser, flag, kind, text)


def _add_number(parser: argparse.ArgumentParser, flag: str, kind: Callable[[str], object], text: str) -> None:
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


def _at_least_four(text: str) -> int:
    value = int(text)
    if value < 4:
        raise argparse.ArgumentTypeError(f"{value} is less than 4: choices are taken from other questions")
    return value


def _at_least_forty(text: str) -> int:
    value = int(text)
    if value < 40:
        raise argparse.ArgumentTypeError(f"{value} is less than 40, two for each of 20 samples")
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

"""Every flag of `megaserve evaluate`. Defaults are those of `EvaluateOptions` and `GenerationParameters`."""

from __future__ import annotations

import argparse
from pathlib import Path

from evaluation import argument_types as types
from evaluation.export.formats import ExportFormat
from evaluation.keys import GenerationParameters
from evaluation.options import EvaluateOptions, OfflineOptions
from evaluation.prompts import PromptFamily
from evaluation.request_types.names import ContinuationName, RequestType
from evaluation.scorers import ScorerName

EPILOG = """\
The same command resumes an interrupted run: what has an answer in RUN is not asked again, whatever the concurrency.
Several processes share a run when RANK and WORLD_SIZE (torchrun, or srun's SLURM_PROCID) are in their environment:
each asks its part, and `--merge RUN` puts the results together at any time.

With --offline the engine runs in this process, or in every rank: torchrun --nproc-per-node N -m evaluation --offline
--load CHECKPOINT ... deals the questions out to N / T replicas of --tensor-model-parallel-size T. Flags that are not
listed here go to the engine, as `megaserve serve` takes them.

exit status:
  0    complete: every row has its outcome, and none of the failed ones could pass if asked again (with --merge also
       when some could)
  2    nothing was asked: usage, data, server or run directory; or RUN belongs to another model, data or parameters
  3    more rows failed than --fail-on-error allows
  4    incomplete: run the same command again
  5    the server refuses this client: see --api-key
  130  interrupted from the keyboard: run the same command again
"""
API_KEY_VARIABLE = "MEGASERVE_API_KEY"


def build_parser() -> argparse.ArgumentParser:
    """The command's parser."""
    parser = argparse.ArgumentParser(
        prog="megaserve evaluate",
        description="Ask a model every question of a data set, keep every answer, and score them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_run(parser)
    _add_questions(parser)
    _add_sampling(parser)
    _add_requests(parser)
    _add_offline(parser)
    return parser


def add_scorer(group: argparse._ActionsContainer) -> None:
    """--scorer, as every command has it that scores."""
    group.add_argument(
        "--scorer", type=ScorerName, choices=list(ScorerName), default=ScorerName.AUTO, help="default: %(default)s"
    )


def add_outputs(group: argparse._ActionsContainer) -> None:
    """--export and --report."""
    group.add_argument(
        "--export",
        type=ExportFormat,
        choices=list(ExportFormat),
        action="append",
        default=[],
        help="beside RUN/export/results.tsv; xlsx, tsv and json are named as VLMEvalKit names them; repeatable",
    )
    group.add_argument(
        "--report",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write report.html once every row has its outcome",
    )


def add_thinking(group: argparse._ActionsContainer) -> None:
    """--thinking and --thinking-tags."""
    group.add_argument(
        "--thinking",
        choices=["tags", "vlmevalkit", "off"],
        help="how the answer is told from the thinking before it: at the tags; as VLMEvalKit does under SPLIT_THINK, "
        "which that variable switches on here too; or not at all. Default: tags",
    )
    group.add_argument(
        "--thinking-tags",
        nargs=2,
        action="append",
        metavar=("OPEN", "CLOSE"),
        help="repeatable; default: <think> </think>",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("run")
    run.add_argument(
        "--server", type=types.url, metavar="URL", help="where the server listens, as http://127.0.0.1:8000"
    )
    run.add_argument(
        "--data",
        metavar="DATA",
        help="a VLMEvalKit .tsv, a .jsonl, a directory with questions.json and images/, or easy-vqa:test|train",
    )
    run.add_argument("--output", type=Path, metavar="RUN", help="run directory: created, or resumed")
    run.add_argument("--merge", type=Path, metavar="RUN", help="only write summary, scores and export of RUN again")
    run.add_argument("--limit", type=types.positive, metavar="N", help="only the first N rows")
    run.add_argument("--ids", type=types.ids, metavar="ID,...", help="ask only these rows now; @FILE: one id a line")
    run.add_argument(
        "--where",
        type=types.condition,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="ask only rows of this status (a class of failure, or answered, failed, missing), or with this value in "
        "a column; repeatable",
    )
    failed = run.add_mutually_exclusive_group()
    failed.add_argument(
        "--retry-failed",
        action=argparse.BooleanOptionalAction,
        help="ask again every failed row, or none; default: those that could pass now, or that --ids or --where name",
    )
    failed.add_argument(
        "--ignore-failed", dest="retry_failed", action="store_false", default=None, help="another name for the latter"
    )
    run.add_argument(
        "--fail-on-error", type=types.failure_limit, metavar="N|F%", help="exit 3 when more rows than this have failed"
    )
    run.add_argument("--new-run", "--force-new", action="store_true", help="set earlier contents of RUN aside")
    run.add_argument(
        "--wait-for-ranks",
        type=types.seconds,
        default=0.0,
        metavar="SECONDS",
        help="before the results are written, wait for the answers of the other ranks until so long none has come; "
        "default: not at all",
    )
    run.add_argument("--verbose", action="store_true", help="print every outcome as it comes")


def _add_questions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("questions and answers")
    group.add_argument(
        "--request-type",
        type=RequestType,
        choices=list(RequestType),
        default=RequestType.GENERATE_UNTIL,
        help="generate an answer, measure the log-probability of the row's answer, or of each of its options, or hold "
        "a dialogue; default: %(default)s",
    )
    group.add_argument(
        "--continuation",
        type=ContinuationName,
        choices=list(ContinuationName),
        default=ContinuationName.TEXT,
        help="multiple_choice measures the texts of the options, or lists them and measures their letters; "
        "default: %(default)s",
    )
    group.add_argument("--next-turn", metavar="FILE:FUNCTION", help="Python function that gives a dialogue's turns")
    prompt = group.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt",
        type=PromptFamily,
        choices=list(PromptFamily),
        default=PromptFamily.AUTO,
        help="form of the question: mcq lists the options and asks for a letter, yes_no and vqa ask for a short "
        "answer, free adds nothing; default: mcq for rows with options, else free",
    )
    prompt.add_argument("--prompt-template", type=Path, metavar="FILE", help="Jinja: question, hint, options, row")
    add_thinking(group)
    add_scorer(group)
    add_outputs(group)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    defaults = GenerationParameters()
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-new-tokens",
        type=types.positive,
        default=defaults.max_new_tokens,
        metavar="N",
        help="default: %(default)s",
    )
    group.add_argument(
        "--temperature", type=types.not_negative, default=defaults.temperature, metavar="T", help="default: 0, greedy"
    )
    group.add_argument(
        "--top-p", type=types.fraction, default=defaults.top_p, metavar="P", help="in (0, 1]; default: 1, off"
    )
    group.add_argument("--seed", type=int, metavar="N", help="default: none")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends an answer; repeatable")


def _add_requests(parser: argparse.ArgumentParser) -> None:
    defaults = EvaluateOptions.__dataclass_fields__
    group = parser.add_argument_group("requests")
    group.add_argument(
        "--api-key", type=types.header_value, metavar="KEY", help=f"of the server; default: ${API_KEY_VARIABLE}, if set"
    )
    for flag, kind, meta, text in (
        ("--concurrency", types.positive, "N", "questions under way at a time"),
        ("--max-image-mb", types.seconds, "MIB", "of images under way at a time"),
        ("--timeout", types.seconds, "SECONDS", "for one request, from its dispatch on"),
        ("--server-wait", types.seconds, "SECONDS", "for a server that loads, restarts, or answers 429 or 503"),
        ("--max-attempts", types.positive, "N", "requests for one row, not counting 429 and 503"),
    ):
        default = defaults[flag.removeprefix("--").replace("-", "_")].default
        group.add_argument(flag, type=kind, default=default, metavar=meta, help=f"{text}; default: %(default)s")


def _add_offline(parser: argparse.ArgumentParser) -> None:
    defaults = OfflineOptions.__dataclass_fields__
    group = parser.add_argument_group("offline mode")
    group.add_argument(
        "--offline", action="store_true", help="run the engine in this process instead of asking a server"
    )
    group.add_argument("--load", metavar="CHECKPOINT", help="the checkpoint, as `megaserve serve` takes it")
    group.add_argument(
        "--tensor-model-parallel-size",
        type=types.positive,
        default=defaults["tensor_model_parallel_size"].default,
        metavar="T",
        help="ranks that share one replica of the model; default: %(default)s",
    )
    group.add_argument(
        "--pad-requests",
        action="store_true",
        help="let every replica ask as many questions as the largest share has, for models whose forward pass is "
        "collective; the answers to what is added are thrown away",
    )
    group.add_argument(
        "--barrier-timeout",
        type=types.seconds,
        default=defaults["barrier_timeout"].default,
        metavar="SECONDS",
        help="to wait for another rank, so at least as long as the fastest may be ahead; default: %(default)s",
    )

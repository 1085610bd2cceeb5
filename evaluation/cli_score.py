"""`megaserve score RUN`: scores, summary, exports and report of a run again, without asking anybody anything."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evaluation.cli import thinking_of
from evaluation.console import warn
from evaluation.errors import EvaluationError, ExitStatus
from evaluation.evaluate import exit_status
from evaluation.finish import damage_lines, summary_lines, write_results
from evaluation.flags import add_outputs, add_thinking
from evaluation.options import FailureLimit
from evaluation.run_directory.atomic import write_atomic
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.open_run import OpenRun, open_existing
from evaluation.scorers import SCORERS, Scorer, ScorerName, choose_scorers
from evaluation.thinking import ThinkingSplit


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status. `argv`: without the program's name; None takes sys.argv."""
    arguments = _parser().parse_args(argv)
    try:
        run = _with_thinking(open_existing(RunLayout(arguments.run)), thinking_of(arguments))
        warn(damage_lines(read_logs(run.layout.log)))
        scorers = _scorers(run, arguments.scorer or [ScorerName.AUTO])
        summary = write_results(run, scorers, arguments.export, report=arguments.report)
        for line in summary_lines(run, summary):
            print(line)
        return exit_status(summary, FailureLimit())
    except EvaluationError as error:
        print(f"megaserve score: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="megaserve score",
        description="Score the answers of a run again, by other rules or after another split of thinking and answer.",
        epilog="exit status: 0 the run is complete, 4 it is not, 2 usage or not a run",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--scorer",
        type=ScorerName,
        choices=list(ScorerName),
        action="append",
        help="repeatable, and added to the scores that the run has; default: auto",
    )
    add_thinking(parser)
    add_outputs(parser)
    return parser


def _with_thinking(run: OpenRun, thinking: ThinkingSplit | None) -> OpenRun:
    """The run, its answers split so from now on."""
    if thinking is None or run.manifest.thinking == thinking.to_dict():
        return run
    manifest = replace(run.manifest, thinking=thinking.to_dict())
    write_atomic(run.layout.manifest, manifest.to_json())
    return replace(run, manifest=manifest)


def _scorers(run: OpenRun, names: Sequence[ScorerName]) -> list[Scorer]:
    kept = [name for name in SCORERS if run.layout.scores(name.value).exists()]
    chosen = {
        scorer.name: scorer
        for name in (*kept, *names)
        for scorer in choose_scorers(name, run.items, run.manifest.request_type)
    }
    return list(chosen.values())


if __name__ == "__main__":
    sys.exit(main())

"""`megaserve compare RUN_A RUN_B`: is one of two runs better, and on which rows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from evaluation.compare import Comparison, Flip, compare_runs, scorer_pairs
from evaluation.console import warn
from evaluation.errors import EvaluationError, ExitStatus
from evaluation.flags import add_scorer
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.open_run import OpenRun, open_existing


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status. `argv`: without the program's name; None takes sys.argv."""
    arguments = _parser().parse_args(argv)
    try:
        a, b = open_existing(RunLayout(arguments.run_a)), open_existing(RunLayout(arguments.run_b))
        warn(_differences(a, b))
        compared = compare_runs(a, b, scorer_pairs(a, b, arguments.scorer))
    except EvaluationError as error:
        print(f"megaserve compare: {error}", file=sys.stderr)
        return error.exit_status
    if arguments.json:
        print(json.dumps([one.to_dict() for one in compared], indent=1))
        return ExitStatus.COMPLETE
    for one in compared:
        for line in _lines(one, arguments.flips):
            print(line)
    return ExitStatus.COMPLETE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="megaserve compare",
        description="Compare two runs row by row: the paired difference of the scores, B minus A, and what flipped.",
        allow_abbrev=False,
    )
    parser.add_argument("run_a", type=Path, metavar="RUN_A")
    parser.add_argument("run_b", type=Path, metavar="RUN_B")
    add_scorer(parser)
    parser.add_argument("--flips", type=int, default=20, metavar="N", help="rows to list; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON document instead")
    return parser


def _differences(a: OpenRun, b: OpenRun) -> list[str]:
    """What else than the answers differs; a change of the model is what one compares, and no reason to warn."""
    return [line for line in a.manifest.differences(b.manifest) if not line.startswith("model:")]


def _lines(one: Comparison, num_flips: int) -> Iterator[str]:
    low, high = one.ci95
    yield f"{one.scorer}: A {one.mean_a:.4f}, B {one.mean_b:.4f} on {one.n} rows"
    yield f"  B - A = {one.difference:+.4f} ± {one.stderr:.4f}, 95 % interval {low:+.4f} to {high:+.4f}"
    better = sum(flip.score_b > flip.score_a for flip in one.flips)
    yield f"  {len(one.flips)} rows flipped: {better} better in B, {len(one.flips) - better} worse"
    yield from _flip_lines(one.flips[: max(0, num_flips)])


def _flip_lines(flips: Sequence[Flip]) -> Iterator[str]:
    for flip in flips:
        yield (
            f"    {flip.item_id}: {flip.score_a:g} -> {flip.score_b:g}, "
            f"{_shown(flip.prediction_a)} -> {_shown(flip.prediction_b)}, gold {', '.join(map(_shown, flip.gold))}"
        )


def _shown(text: str | None) -> str:
    return "nothing" if text is None else repr(text if len(text) <= 60 else f"{text[:57]}...")


if __name__ == "__main__":
    sys.exit(main())

"""`megaserve bench prefix`: the likeliest of four answers after a long context, in turn with lm-eval's `hf` backend.

Each question has a context of its own, which its four choices of several tokens share.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.aggregates import median
from benchmarks.checkpoint import checkpoint_or_smollm2, hugging_face_directory, resolve_serve_arguments
from benchmarks.errors import MeasurementError, SetupError
from benchmarks.interference import DISTURBED_SHARE
from benchmarks.loaded_engine import load_engine, settings_of
from benchmarks.machine import describe_machine, versions
from benchmarks.messages import Load, Score, Scored
from benchmarks.options import Options
from benchmarks.peers.measurements import Metric, times_better
from benchmarks.prompts import encoder_of
from benchmarks.repetition import measured, report_progress
from benchmarks.worker_process import WorkerProcess
from benchmarks.workload import cut_prompts

CONTEXT_TOKENS = 400
CHOICE_TOKENS = (4, 6, 8, 5)
LM_EVAL_BATCH_SIZES = (1, 4, 16, 32)
_TRIAL_SHARE = 10
"""Their best batch size is found on a tenth of the questions."""

_LARGEST_DIFFERENCE = 0.02
"""Between log-likelihoods in fp32; sums of a few tokens differ in the fourth decimal place."""

_SECONDS = Metric("seconds", "seconds")


@dataclass(frozen=True)
class Questions:
    """prompts: context and choice, the choices of a question one after another. num_scored: tokens of each choice."""

    prompts: list[list[int]]
    num_scored: list[int]

    def __len__(self) -> int:
        return len(self.prompts) // len(CHOICE_TOKENS)

    def first(self, count: int) -> list[int]:
        """num_scored of the first questions."""
        return self.num_scored[: count * len(CHOICE_TOKENS)]

    def answers(self, logprobs: list[float]) -> list[int]:
        """By question, the likeliest choice."""
        size = len(CHOICE_TOKENS)
        return [max(range(size), key=logprobs[i : i + size].__getitem__) for i in range(0, len(logprobs), size)]

    def describe(self) -> dict[str, Any]:
        return {
            "name": "multi-token choices",
            "num_questions": len(self),
            "num_choices": len(CHOICE_TOKENS),
            "context_tokens": CONTEXT_TOKENS,
            "prompt_tokens": sum(map(len, self.prompts)),
            "prompts_sha256": hashlib.sha256(repr(self.prompts).encode()).hexdigest(),
        }


@dataclass
class Rounds:
    """Ours and theirs, round by round."""

    ours: list[Scored]
    theirs: list[Scored]
    foreign_cpu_shares: list[float]


def make_questions(encode: Callable[[str], list[int]], num_questions: int) -> Questions:
    """Contexts from even distances of one text; a choice is what follows this context or one of the next three."""
    pieces = cut_prompts(encode, [CONTEXT_TOKENS + max(CHOICE_TOKENS)] * num_questions)
    prompts, num_scored = [], []
    for number, piece in enumerate(pieces):
        for choice, length in enumerate(CHOICE_TOKENS):
            following = pieces[(number + choice) % num_questions][CONTEXT_TOKENS:]
            prompts.append(piece[:CONTEXT_TOKENS] + following[:length])
            num_scored.append(length)
    return Questions(prompts, num_scored)


def run_prefix(options: Options) -> dict[str, Any]:
    """The result as JSON values. Raises BenchmarkError."""
    if importlib.util.find_spec("lm_eval") is None:
        raise SetupError("bench prefix compares with lm-eval, which is not installed: pip install lm-eval")
    arguments = options.serve_arguments(checkpoint_or_smollm2(options.load), prefix_caching=True)
    document = resolve_serve_arguments(arguments)
    hf_directory = hugging_face_directory(options.load, options.hf_directory)
    questions = make_questions(encoder_of(document), options.num_choice_questions)
    rounds = Rounds([], [], [])
    with ExitStack() as stack:
        report_progress("megaserve: loading")
        ours = load_engine(stack, document, questions.prompts)
        report_progress("lm_eval: loading")
        load = Load(model=str(hf_directory), prompts=questions.prompts, **settings_of(document))
        theirs = stack.enter_context(WorkerProcess("lm_eval", load))
        theirs.load()
        trial = _try_batch_sizes(theirs, questions)
        batch_size = min(trial, key=trial.__getitem__)
        ours.score(Score(num_scored_tokens=questions.first(max(1, len(questions) // _TRIAL_SHARE))))  # to warm up
        for _ in range(options.repetitions):
            _round(rounds, questions, ours, theirs, batch_size, options.quiet_wait)
    return {
        **_figures(questions, rounds, is_exact=document.values["dtype"] == "fp32"),
        "lm_eval_batch_size": batch_size,
        "lm_eval_trial_seconds": {str(size): seconds for size, seconds in trial.items()},
        "checkpoint": document.checkpoint.path,
        **settings_of(document),
        "versions": versions(),
        "machine": describe_machine(),
    }


def _try_batch_sizes(theirs: WorkerProcess, questions: Questions) -> dict[int, float]:
    """Seconds by batch size, on a part of the questions."""
    some = questions.first(max(1, len(questions) // _TRIAL_SHARE))
    theirs.score(Score(num_scored_tokens=questions.first(1), batch_size=1))  # to warm up
    trial = {}
    for size in LM_EVAL_BATCH_SIZES:
        trial[size] = theirs.score(Score(num_scored_tokens=some, batch_size=size)).seconds
        report_progress(f"lm_eval, batches of {size}: {len(some) / trial[size]:.1f} choices/s in a trial")
    return trial


def _round(
    rounds: Rounds, questions: Questions, ours: WorkerProcess, theirs: WorkerProcess, batch_size: int, quiet_wait: float
) -> None:
    everything = questions.num_scored
    contenders = (
        ("megaserve", ours, Score(num_scored_tokens=everything), rounds.ours),
        ("lm_eval", theirs, Score(num_scored_tokens=everything, batch_size=batch_size), rounds.theirs),
    )
    for name, worker, command, outcomes in contenders:
        outcome, foreign = measured(partial(worker.score, command), quiet_wait)
        outcomes.append(outcome)
        rounds.foreign_cpu_shares.append(foreign)
        rate = len(everything) / outcome.seconds
        report_progress(f"{name}: {rate:.1f} choices/s, other processes used {foreign:.0%} of the cores")


def _figures(questions: Questions, rounds: Rounds, *, is_exact: bool) -> dict[str, Any]:
    """Raises MeasurementError when the two do not agree where they must."""
    mine, yours = rounds.ours[-1].logprobs, rounds.theirs[-1].logprobs
    difference = max(abs(a - b) for a, b in zip(mine, yours, strict=True))
    if is_exact and difference > _LARGEST_DIFFERENCE:
        raise MeasurementError(f"log-likelihoods in fp32 differ by up to {difference:.3f} from lm-eval's")
    ours, theirs = ([outcome.seconds for outcome in outcomes] for outcomes in (rounds.ours, rounds.theirs))
    agreeing = zip(questions.answers(mine), questions.answers(yours), strict=True)
    return {
        "benchmark": "prefix",
        "questions_per_second": len(questions) / median(ours),
        "lm_eval_questions_per_second": len(questions) / median(theirs),
        "times_better": times_better(_SECONDS, ours, theirs),
        "seconds": {"megaserve": ours, "lm_eval": theirs},
        "num_equal_answers": sum(a == b for a, b in agreeing),
        "largest_difference": difference,
        "cached_share": rounds.ours[-1].cached_tokens / sum(map(len, questions.prompts)),
        "peak_rss_bytes": max(outcome.peak_rss_bytes for outcome in rounds.ours),
        "lm_eval_peak_rss_bytes": max(outcome.peak_rss_bytes for outcome in rounds.theirs),
        "workload": questions.describe(),
        "foreign_cpu_shares": rounds.foreign_cpu_shares,
        "num_disturbed": sum(share >= DISTURBED_SHARE for share in rounds.foreign_cpu_shares),
    }

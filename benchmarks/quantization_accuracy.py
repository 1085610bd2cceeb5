"""How good answers and predictions are: what quantized weights may cost."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import MeasurementError
from benchmarks.messages import Score, Scored
from server.config import ResolvedDocument
from server.process_lifetime import bound_command

QUESTIONS = Path(__file__).parents[1] / "examples" / "general_knowledge_mcq.jsonl"
"""The questions that come with the source tree."""

_TIMEOUT_SECONDS = 1800.0
_ENGINE_ARGUMENTS = ("dtype", "threads", "quantize")


@dataclass(frozen=True)
class Answers:
    """predictions: by question, the option taken to be meant. score: share of right ones."""

    predictions: dict[str, str]
    score: float

    def num_other_than(self, others: Answers) -> int:
        """Questions that got another answer there."""
        return sum(others.predictions[index] != answer for index, answer in self.predictions.items())


def perplexity(scored: Scored, command: Score) -> float:
    """Of the tokens that the command had scored."""
    return math.exp(-sum(scored.logprobs) / sum(command.num_scored_tokens))


def answer_questions(questions: Path, document: ResolvedDocument) -> Answers:
    """By `megaserve evaluate --offline`, the likeliest option of each. Raises MeasurementError."""
    engine = [part for name in _ENGINE_ARGUMENTS for part in (f"--{name}", str(document.values[name]))]
    with tempfile.TemporaryDirectory(prefix="megaserve-bench-") as directory:
        run = Path(directory) / "run"
        command = [
            *(sys.executable, "-m", "evaluation", "--offline", "--load", str(document.values["load"])),
            *("--data", str(questions), "--output", str(run), "--request-type", "multiple_choice"),
            *("--scorer", "likelihood", "--no-report", "--export", "tsv", "--", *engine),
        ]
        done = subprocess.run(
            bound_command(command), capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
        if done.returncode != 0:
            raise MeasurementError(f"the evaluation of {questions} failed: {done.stderr.strip()[-2000:]}")
        summary = json.loads((run / "summary.json").read_text())
        with (run / "export" / "results.tsv").open(newline="") as file:
            predictions = {row["index"]: row["prediction"] for row in csv.DictReader(file, delimiter="\t")}
    return Answers(predictions, summary["scores"]["likelihood"]["mean"])

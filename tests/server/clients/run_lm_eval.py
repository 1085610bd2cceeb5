"""`python run_lm_eval.py PLAN OUT`: lm-evaluation-harness itself, in a process of its own, on local tasks.

PLAN is JSON: {"tasks": directory of YAML tasks, "runs": [{"model", "task", "arguments", "options"}]}. OUT gets each
run's samples: arguments (as text, images left out) and raw answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager


def run(tasks: TaskManager, model: str, task: str, arguments: dict[str, Any], options: dict[str, Any]) -> list[Any]:
    outcome = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[task],
        task_manager=tasks,
        log_samples=True,
        bootstrap_iters=0,
        **options,
    )
    samples = sorted(outcome["samples"][task], key=lambda sample: sample["doc_id"])
    return [{"arguments": texts(sample["arguments"]), "answers": sample["resps"]} for sample in samples]


def texts(arguments: Any) -> list[list[str]]:
    return [[part for part in argument if isinstance(part, str)] for argument in arguments]


if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    manager = TaskManager(include_path=plan["tasks"], include_defaults=False)
    Path(sys.argv[2]).write_text(json.dumps([run(manager, **one) for one in plan["runs"]]))

"""`megaserve evaluate`, killed half way and started again: nothing that was answered is asked twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from server.demo.served import DemoError, say


def evaluate_with_a_kill(url: str, data: str, output: Path, *, kill_after: int, flags: Sequence[str]) -> dict[str, Any]:
    """The run's summary. kill_after: answers on disk when the client is killed. Raises DemoError."""
    say(f"megaserve evaluate on {Path(data).name}, killed after {kill_after} answers")
    command = [sys.executable, "-m", "evaluation", "--server", url, "--data", data, "--output", str(output), *flags]
    client = subprocess.Popen(command)
    while client.poll() is None and _count_lines(output / "log") < kill_after:
        time.sleep(0.02)
    client.kill()
    client.wait()
    say(f"killed with {_count_lines(output / 'log')} answers on disk; the same command again goes on from there")
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise DemoError(f"the evaluation ended with status {status}; its records are in {output}")
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    say("result")
    for scorer, score in summary["scores"].items():
        print(f"{scorer}: {score['mean']:.3f} ± {score['stderr']:.3f} on {score['n']} questions")
    print(f"{summary['done']} answered, {summary['failed']} failed; report: {output / 'report.html'}")
    return summary


def _count_lines(log_directory: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in log_directory.glob("*.jsonl"))

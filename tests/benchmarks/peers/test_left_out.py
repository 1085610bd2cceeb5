"""A peer that dies in the middle of a comparison is left out of it with the reason, and the others' rounds count."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.errors import MeasurementError
from benchmarks.peers import in_process
from benchmarks.peers import measurements as m
from benchmarks.peers.in_process import Probes, Work, compare_in_process
from benchmarks.peers.left_out import LeftOut
from benchmarks.peers.measurements import Measurements
from benchmarks.worker_process import WorkerProgram
from benchmarks.workload import Workload

PROGRAM = """
import os
import time
from benchmarks.peers.worker_protocol import run_worker

class Mortal:
    def __init__(self, lifetime):
        self.left = lifetime

    def generate(self, prompts, max_new_tokens):
        time.sleep(1e-4 * max_new_tokens)
        self.left -= 1
        if not self.left:
            os._exit(3)
        return [[prompt[-1]] * max_new_tokens for prompt in prompts]

run_worker(lambda request: Mortal({lifetime}))
"""
DOCUMENT: Any = SimpleNamespace(values={"dtype": "fp32", "device": "cpu", "threads": 1})
WORK = Work(DOCUMENT, Path(), Workload([[1, 2], [3]], 4), Probes(decode=[1], first_token=[2]))
WARM_UP, ROUND = 2, 4  # messages


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the contenders' lifetimes in messages; 0 is for ever."""

    def set_lifetimes(lifetimes: dict[str, int]) -> None:
        def program(name: str, work: Work, directory: Path) -> tuple[str, Path, WorkerProgram]:
            file = directory / "worker.py"
            file.write_text(PROGRAM.replace("{lifetime}", str(lifetimes[name])))
            variables = {"PYTHONPATH": str(Path(__file__).parents[3])}
            return name, directory, WorkerProgram([sys.executable, str(file)], variables)

        monkeypatch.setattr(in_process, "_program", program)

    return set_lifetimes


def test_the_others_go_on(mortal: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mortal({m.OURS: 0, "dies": WARM_UP + ROUND + 2, "lives": 0})
    results = Measurements()

    outcome = compare_in_process(WORK, ["dies", "lives"], repetitions=3, quiet_wait=0, results=results)

    assert outcome.equal_sequences == {"lives": 2}
    assert list(outcome.left_out) == ["dies"]
    assert outcome.left_out["dies"].startswith("the worker ended with status 3")
    assert "dies is left out: the worker ended with status 3" in capsys.readouterr().err
    for values in results.describe().values():
        assert values.keys() == {m.OURS, "lives"}
    assert len(results.values[m.DECODE.name]["lives"]) == 3


def test_ours_may_not_die(mortal: Any) -> None:
    mortal({m.OURS: WARM_UP + 1, "lives": 0})
    with pytest.raises(MeasurementError, match="ended with status 3"):
        compare_in_process(WORK, ["lives"], repetitions=1, quiet_wait=0, results=Measurements())


def test_what_was_measured_elsewhere_stays() -> None:
    results = Measurements()
    for metric in (m.OFFLINE, m.HTTP):
        for name in (m.OURS, "peer"):
            results.add(metric, name, 1.0)
    left_out = LeftOut(results, m.HTTP_METRICS)

    with left_out.if_it_fails("peer"):
        raise MeasurementError("peer: gone")

    assert left_out.reasons == {"peer": "gone"}
    assert results.values[m.HTTP.name].keys() == {m.OURS}
    assert results.values[m.OFFLINE.name].keys() == {m.OURS, "peer"}

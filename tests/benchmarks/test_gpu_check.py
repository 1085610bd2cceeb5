"""The prepared check of a GPU, with toy models on the CPU: every command of it runs, and a wrong result fails it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import device_check
from benchmarks.device_check import check_scores, check_tokens, main
from benchmarks.errors import MeasurementError
from benchmarks.step_check import compare

SCRIPT = Path(device_check.__file__).with_name("gpu_check.sh")


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_dry_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(SCRIPT), "--dry-run", str(tmp_path)],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens equal the reference's" in done.stdout
    assert "8 steps; log-probabilities differ from fp32's with torch operators by up to 0." in done.stdout
    assert json.loads((tmp_path / "small-fp32.json").read_text())["hugging_face"]["num_equal_sequences"] == 3
    assert json.loads((tmp_path / "large-bf16.json").read_text())["dtype"] == "bf16"
    assert '"share"' in done.stdout


def test_other_tokens_and_other_likelihoods_are_errors() -> None:
    check_tokens([[1], [2]], [[1], [2]])
    with pytest.raises(MeasurementError, match=r"for prompts \[1\]"):
        check_tokens([[1], [2]], [[1], [3]])
    assert check_scores([-1.0, -2.0], [-1.001, -2.0]) == pytest.approx(0.001)
    with pytest.raises(MeasurementError, match=r"by up to 0\.500"):
        check_scores([-1.0, -2.0], [-1.0, -2.5])


def test_a_way_that_is_less_exact_than_torch_s_operators_is_an_error() -> None:
    truth = [torch.zeros(2, 3), torch.zeros(1, 3)]
    steps = {name: [row + error for row in truth] for name, error in (("torch", 0.1), ("flash", -0.15), ("bad", 0.3))}
    assert compare(truth, {name: steps[name] for name in ("torch", "flash")}) == pytest.approx(
        {"torch": 0.1, "flash": 0.15}
    )
    with pytest.raises(MeasurementError, match=r"bad: log-probabilities differ from fp32's by 0\.3, more than 0\.205"):
        compare(truth, steps)
    steps["bad"][1][0, 1] = float("nan")
    with pytest.raises(MeasurementError, match=r"bad: .* by nan"):
        compare(truth, {name: steps[name] for name in ("torch", "bad")})


@pytest.mark.proof
def test_a_checkpoint_that_is_none_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--load", str(tmp_path), "--device", "cpu"]) == 2
    assert str(tmp_path) in capsys.readouterr().err

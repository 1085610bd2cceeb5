"""The prepared check of a GPU, with toy models on the CPU: every command of it runs, and a wrong result fails it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import device_check
from benchmarks.device_check import check_scores, check_tokens, main
from benchmarks.errors import MeasurementError

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


@pytest.mark.proof
def test_a_checkpoint_that_is_none_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--load", str(tmp_path), "--device", "cpu"]) == 2
    assert str(tmp_path) in capsys.readouterr().err

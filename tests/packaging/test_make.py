"""The Makefile's promises that can be kept without installing anything: targets, the search for Python, stages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(command: list[str | Path], repository: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=repository,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("target", "command"),
    [
        (["demo"], "megaserve demo"),
        (["demo", "SERVE=1"], "megaserve demo --serve"),
        (["bench"], "megaserve bench offline"),
        (["test"], '-m "not proof"'),
        (["test"], "--ignore tests/server/api/page"),
        (["check-page"], ".ci/install-chromium"),
        (["check-page"], "pytest tests/server/api/page"),
        (["check"], "lint-imports"),
        (["check"], '-m "not proof"'),
        (["proof"], "-m proof"),
        (["durations"], "--durations=20"),
        (["sanitize"], "-m model_providers.kernels.build --sanitize"),
        (["requirements"], "--output-file requirements/base.txt"),
    ],
)
def test_target_would_run(repository: Path, target: list[str], command: str) -> None:
    done = run(["make", "--dry-run", *target], repository, MAKEFLAGS="")
    assert done.returncode == 0, done.stderr
    assert command in done.stdout


def test_serving_can_be_switched_off_by_value(repository: Path) -> None:
    assert "--serve" not in run(["make", "--dry-run", "demo", "SERVE=0"], repository, MAKEFLAGS="").stdout


def test_help_lists_the_targets(repository: Path) -> None:
    shown = run(["make", "help"], repository, MAKEFLAGS="").stdout
    listed = {line.split()[0] for line in shown.splitlines()}
    assert {"env", "demo", "test", "check", "lint", "proof", "durations", "requirements", "clean"} <= listed


def test_broken_shim_is_passed_over_for_a_python_that_runs(repository: Path, tmp_path: Path) -> None:
    script(tmp_path / "bin" / "python3.12", "#!/bin/sh\nexit 127\n")
    behind = script(tmp_path / "pyenv/versions/3.12.1/bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    done = run(
        [repository / "requirements/find_python"],
        repository,
        PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin",
        PYENV_ROOT=str(tmp_path / "pyenv"),
        PYTHON="",
    )
    assert done.returncode == 0, done.stderr
    assert behind.exists()
    assert run([done.stdout.strip(), "--version"], repository).stdout.startswith("Python 3.12.")


def test_no_python_is_an_error_that_says_what_to_do(repository: Path, tmp_path: Path) -> None:
    for name in ("python3.12", "python3", "python"):
        script(tmp_path / "bin" / name, "#!/bin/sh\nexit 1\n")
    done = run(
        [repository / "requirements/find_python"],
        repository,
        PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin",
        PYENV_ROOT=str(tmp_path / "none"),
        PYTHON="",
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "PYTHON=" in done.stderr


def test_chosen_python_that_does_not_fit_is_refused(repository: Path, tmp_path: Path) -> None:
    chosen = script(tmp_path / "python", "#!/bin/sh\nexit 1\n")
    done = run([repository / "requirements/find_python"], repository, PYTHON=str(chosen))
    assert done.returncode == 1
    assert str(chosen) in done.stderr


@pytest.mark.parametrize("status", [0, 3])
def test_stage_keeps_the_status_and_says_how_long(repository: Path, status: int) -> None:
    done = run([repository / ".ci/stage", "trial", "sh", "-c", f"echo inside; exit {status}"], repository)
    assert done.returncode == status
    first, second, third = done.stdout.splitlines()
    assert (first, second) == ("== trial", "inside")
    assert third.startswith("== trial: ")
    assert third.endswith(f"exit status {status}")

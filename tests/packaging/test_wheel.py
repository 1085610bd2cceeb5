"""The wheel holds every file of our packages and nothing else, and its script starts."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

from model_providers.kernels.build import targets_of_architecture


def source_files(repository: Path, packages: list[str]) -> set[str]:
    """Files below the packages that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", *packages]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in listed if (repository / name).is_file()}


def test_wheel_holds_every_file_of_the_packages(wheel_contents: Path, repository: Path, packages: list[str]) -> None:
    shipped = {str(path.relative_to(wheel_contents)) for path in wheel_contents.rglob("*") if path.is_file()}
    code_and_data = {name for name in shipped if not name.startswith("megaserve-")}
    kernels = {f"model_providers/kernels/lib/kernels_{target}.so" for target in targets_of_architecture()}
    assert code_and_data == source_files(repository, packages) | kernels


def test_wheel_says_which_machines_it_is_for(wheel_contents: Path) -> None:
    (metadata,) = wheel_contents.glob("*.dist-info")
    assert "Tag: py3-none-linux_" in (metadata / "WHEEL").read_text()


def test_wheel_top_level_is_the_packages_alone(wheel_contents: Path, packages: list[str]) -> None:
    names = {path.name for path in wheel_contents.iterdir() if not path.name.endswith(".dist-info")}
    assert names == set(packages)


def test_wheel_script_starts(wheel_contents: Path, tmp_path: Path) -> None:
    (metadata,) = wheel_contents.glob("*.dist-info")
    (script,) = Distribution.at(metadata).entry_points.select(group="console_scripts", name="megaserve")
    code = f"""
import sys
sys.path.insert(0, {str(wheel_contents)!r})
sys.argv = ["megaserve", "--help"]
import {script.module}
assert {script.module}.__file__.startswith({str(wheel_contents)!r})
{script.module}.{script.attr}()
"""
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout


def test_installed_script_starts(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("megaserve")
    done = subprocess.run([script, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "evaluate" in done.stdout

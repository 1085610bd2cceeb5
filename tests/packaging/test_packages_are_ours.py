"""Top-level names such as `server` are ours, from the editable install and from the wheel, and nobody else's."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path


def directories_of(packages: list[str], cwd: Path, first_on_path: Path | None = None) -> dict[str, Path]:
    """Where a new interpreter, started away from the repository, imports each package from. It writes no bytecode."""
    code = f"""
import importlib, json, pathlib, sys
sys.path[:0] = {[str(first_on_path)] if first_on_path else []}
modules = [importlib.import_module(name) for name in {packages}]
print(json.dumps({{module.__name__: str(pathlib.Path(module.__file__).parent.resolve()) for module in modules}}))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", code], cwd=cwd, capture_output=True, text=True, check=True, timeout=120
    )
    return {name: Path(directory) for name, directory in json.loads(done.stdout).items()}


def test_editable_install_imports_the_working_tree(repository: Path, packages: list[str], tmp_path: Path) -> None:
    assert directories_of(packages, tmp_path) == {name: repository / name for name in packages}


def test_wheel_imports_its_own_files(wheel_contents: Path, packages: list[str], tmp_path: Path) -> None:
    found = directories_of(packages, tmp_path, first_on_path=wheel_contents)
    assert found == {name: wheel_contents / name for name in packages}


def test_no_other_distribution_ships_a_package_of_ours(packages: list[str]) -> None:
    others = [distribution for distribution in distributions() if distribution.metadata["Name"] != "megaserve"]
    assert len(others) > 50
    clashes = {
        (distribution.metadata["Name"], file.parts[0])
        for distribution in others
        for file in distribution.files or []
        if file.parts[0] in packages
    }
    assert not clashes

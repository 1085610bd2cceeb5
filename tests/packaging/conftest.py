"""The repository's root, its project table, and its wheel, built once and unpacked as an installer would."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def pyproject(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def packages(pyproject: dict[str, Any]) -> list[str]:
    """Our top-level packages."""
    return pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.fixture(scope="session")
def wheel_contents(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel. Built with the installed hatchling, so nothing is fetched."""
    built = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built), str(repository)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(built / "contents")
    return built / "contents"

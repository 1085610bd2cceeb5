"""Nothing in the repository depends on one machine or on one package registry."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

# Written so that the patterns do not match themselves.
MACHINE_PATH = re.compile(r"(?<![\w.}/])/(?:work|root|home|Users)/\w+")
REGISTRY = re.compile(
    r"\b(?:pypi|pythonhosted|anaconda|npmjs|nvcr|ghcr|quay|docker|download\.pytorch)\.(?:org|com|io)\b"
    r"|--(?:extra-)?index(?:-url)?[ =]|--find-link[s]"
)


@pytest.fixture(scope="module")
def texts(repository: Path) -> dict[str, str]:
    """Text by name, of every file that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    names = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.splitlines()
    read = {name: (repository / name).read_bytes() for name in names if (repository / name).is_file()}
    return {name: data.decode() for name, data in read.items() if b"\0" not in data}


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["machine path", "registry"])
def test_no_text_names_it(texts: dict[str, str], pattern: re.Pattern[str]) -> None:
    assert "pyproject.toml" in texts
    found = {(name, match.group()) for name, text in texts.items() for match in pattern.finditer(text)}
    assert not found


def test_shell_scripts_are_executable(repository: Path, texts: dict[str, str]) -> None:
    scripts = [name for name, text in texts.items() if text.startswith("#!")]
    assert ".ci/run" in scripts
    assert not [name for name in scripts if not (repository / name).stat().st_mode & 0o100]

"""The pinned requirements: complete, consistent, installed, and silent about where packages come from."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FILES = ["base.txt", "test.txt", "nodeps.txt", "uv.txt", "constraints.txt"]


def pins(path: Path) -> dict[str, str]:
    """Version by canonical name; fails on any line that is not `name==version` or a comment."""
    found = {}
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text:
            name, equals, pinned = text.partition("==")
            assert equals, f"{path.name}: {line!r} is not a pin"
            assert pinned.replace(".", "").replace("post", "").isalnum(), (
                f"{path.name}: {line!r} is not a plain version"
            )
            found[canonicalize_name(name)] = pinned
    return found


@pytest.fixture(scope="module")
def folder(repository: Path) -> Path:
    return repository / "requirements"


def test_every_requirements_file_is_known(folder: Path) -> None:
    assert {path.name for path in folder.glob("*.txt")} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_lines_are_pins_without_index_or_address(folder: Path, name: str) -> None:
    assert pins(folder / name)
    text = (folder / name).read_text()
    assert "://" not in text
    assert not [line for line in text.splitlines() if line.startswith("-")]


def test_base_pins_satisfy_the_project(folder: Path, pyproject: dict[str, Any]) -> None:
    assert_satisfied(pyproject["project"]["dependencies"], pins(folder / "base.txt"))


def test_test_pins_satisfy_project_extras_and_groups(folder: Path, pyproject: dict[str, Any]) -> None:
    wanted = [
        *pyproject["project"]["dependencies"],
        *(entry for extra in pyproject["project"]["optional-dependencies"].values() for entry in extra),
        *(entry for group in pyproject["dependency-groups"].values() for entry in group),
        *pyproject["build-system"]["requires"],
    ]
    assert_satisfied(wanted, pins(folder / "test.txt"))


def assert_satisfied(wanted: list[str], pinned: dict[str, str]) -> None:
    for requirement in map(Requirement, wanted):
        found = pinned.get(canonicalize_name(requirement.name))
        assert found is not None, f"{requirement.name} is not pinned: run `make requirements`"
        assert requirement.specifier.contains(found), f"{requirement} is pinned to {found}"


def test_tests_run_on_the_versions_that_are_served(folder: Path) -> None:
    assert pins(folder / "base.txt").items() <= pins(folder / "test.txt").items()


def test_constraints_are_kept(folder: Path) -> None:
    assert pins(folder / "constraints.txt").items() <= pins(folder / "base.txt").items()


def test_installed_versions_are_the_pinned_ones(folder: Path) -> None:
    wanted = {**pins(folder / "test.txt"), **pins(folder / "nodeps.txt"), **pins(folder / "uv.txt")}
    # A local label (2.13.0+cpu) is another build of the same release.
    assert {name: version(name).partition("+")[0] for name in wanted} == wanted

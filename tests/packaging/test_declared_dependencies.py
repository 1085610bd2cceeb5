"""Every package that the code imports is declared, and every declared one is imported or named as needed otherwise."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Packages in which a declared one publishes part of its own interface, the errors it raises included.
PART_OF = {"starlette": "fastapi", "pydantic-core": "pydantic", "huggingface-hub": "transformers", "yarl": "aiohttp"}
# Looked for by uvicorn (uvloop, httptools) and by transformers (gguf, accelerate, pillow) where they are installed.
FOUND_BY_OTHERS = {"uvloop", "httptools", "gguf", "accelerate", "pillow"}

# What benchmarks compare with; whoever runs those has the test group.
COMPARED_WITH = {"lm-eval"}


def imported_names(files: Iterable[Path]) -> Iterator[str]:
    """Top-level names of absolute imports, those inside functions included."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_bytes(), filename=str(file))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module.partition(".")[0]


@pytest.fixture(scope="module")
def imported(repository: Path, packages: list[str]) -> set[str]:
    """Distributions that our packages import."""
    peers = repository / "benchmarks" / "peers"  # its workers run in environments of their own
    files = [file for package in packages for file in (repository / package).rglob("*.py")]
    files = [file for file in files if not file.is_relative_to(peers)]
    names = set(imported_names(files)) - set(sys.stdlib_module_names) - set(packages)
    provided_by = packages_distributions()
    distributions = {canonicalize_name(provided_by[name][0]) for name in names}
    return {PART_OF.get(name, name) for name in distributions}


@pytest.fixture(scope="module")
def declared(pyproject: dict[str, Any]) -> set[str]:
    extras = pyproject["project"]["optional-dependencies"].values()
    entries = [*pyproject["project"]["dependencies"], *(entry for extra in extras for entry in extra)]
    return {canonicalize_name(Requirement(entry).name) for entry in entries}


def test_what_is_imported_is_declared(imported: set[str], declared: set[str]) -> None:
    assert imported
    assert imported - declared == COMPARED_WITH


def test_what_is_compared_with_is_there_for_the_tests(pyproject: dict[str, Any]) -> None:
    group = {canonicalize_name(Requirement(entry).name) for entry in pyproject["dependency-groups"]["test"]}
    assert group >= COMPARED_WITH


def test_what_is_declared_is_needed(imported: set[str], declared: set[str]) -> None:
    assert declared - imported - FOUND_BY_OTHERS == set()

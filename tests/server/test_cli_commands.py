"""The `megaserve` script."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from server import cli


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in ("serve", "inspect", "import-hf", "demo", "evaluate", "bench"))


def test_no_command_is_an_error_that_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage:" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"megaserve {version('megaserve')}\n"


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sreve"]) == 2
    assert "'sreve'" in capsys.readouterr().err


def test_every_command_has_a_module() -> None:
    modules = re.findall(r"^    from ([\w.]+) import", Path(cli.__file__).read_text(), flags=re.MULTILINE)
    assert len(modules) == len(cli.COMMANDS)
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []

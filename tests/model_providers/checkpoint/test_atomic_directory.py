"""A destination is complete or as it was, whatever happens while it is being written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from model_providers.checkpoint.atomic_directory import atomic_directory, remove_partial


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_appears_complete(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "deep" / "made") as building:
        (building / "file").write_text("new")
        assert not (tmp_path / "deep" / "made").exists()
    assert _names(tmp_path / "deep") == ["made"]
    assert (tmp_path / "deep" / "made" / "file").read_text() == "new"
    assert (tmp_path / "deep" / "made").stat().st_mode == (tmp_path / "deep").stat().st_mode


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), atomic_directory(tmp_path / "made") as building:
        (building / "file").write_text("half")
        raise error
    assert _names(tmp_path) == []


def test_replaces_the_old_one_whole(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").touch()
    with atomic_directory(tmp_path / "made") as building:
        (building / "new").touch()
    assert _names(tmp_path) == ["made"]
    assert _names(tmp_path / "made") == ["new"]


def test_failure_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").touch()
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / "made"):
        raise RuntimeError
    assert _names(tmp_path) == ["made"]
    assert _names(tmp_path / "made") == ["old"]


def test_killed_process_leaves_only_a_hidden_sibling(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from model_providers.checkpoint.atomic_directory import atomic_directory\n"
        "with atomic_directory(Path(sys.argv[1])) as building:\n"
        "    (building / 'file').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, tmp_path / "made"])
    assert killed.returncode == -signal.SIGKILL
    (left,) = _names(tmp_path)
    assert left.startswith(".made.partial-")
    remove_partial(tmp_path / "made")
    assert _names(tmp_path) == []

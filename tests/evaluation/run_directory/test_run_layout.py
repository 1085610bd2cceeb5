"""Which directories may become a run, and how one makes room for the next."""

from __future__ import annotations

import pytest

from evaluation.errors import RunDirectoryError
from evaluation.run_directory.layout import RunLayout


@pytest.mark.parametrize(
    "entries",
    [
        [],
        ["dataset"],
        ["superseded"],
        [".manifest.json.0123456789ab", "dataset"],
        ["manifest.json", "log", "notes.txt"],
    ],
)
def test_new_begun_and_existing_runs_are_usable(tmp_path, entries):
    for name in entries:
        (tmp_path / name).touch()
    RunLayout(tmp_path).check_usable()
    RunLayout(tmp_path / "absent").check_usable()


@pytest.mark.parametrize("entries", [["thesis.tex"], ["log"], ["summary.json", "dataset"]])
def test_anything_else_is_not(tmp_path, entries):
    for name in entries:
        (tmp_path / name).touch()
    with pytest.raises(RunDirectoryError, match="so it is not a run"):
        RunLayout(tmp_path).check_usable()


def test_file_is_not(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="is a file"):
        RunLayout(tmp_path / "file").check_usable()


def test_superseding_keeps_every_earlier_run(tmp_path):
    layout = RunLayout(tmp_path)
    assert layout.supersede() is None
    for content in ("one", "two"):
        layout.manifest.write_text(content)
        layout.supersede()
    assert [(tmp_path / "superseded" / n / "manifest.json").read_text() for n in "12"] == ["one", "two"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["superseded"]

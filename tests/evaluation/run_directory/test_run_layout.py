"""Which directories may become a run, and how one makes room for the next."""

from __future__ import annotations

from pathlib import Path

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


def begun_run(layout):
    layout.log.mkdir(parents=True)
    (layout.log / "a.jsonl").write_text("an answer")
    (layout.root / "dataset").mkdir()
    layout.manifest.write_text("one")
    layout.summary.write_text("{}")


@pytest.mark.parametrize("num_moved", [0, 1, 2, 3, 4])
def test_interrupted_move_is_finished(tmp_path, monkeypatch, num_moved):
    layout = RunLayout(tmp_path / "run")
    begun_run(layout)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed_after(num_moved))
        with pytest.raises(KeyboardInterrupt):
            layout.supersede()
    if num_moved in (1, 2, 3):
        with pytest.raises(RunDirectoryError, match="pass --new-run again"):
            layout.check_usable()
    layout.check_usable(new_run=True)

    assert layout.supersede() == layout.root / "superseded" / "1"

    assert sorted(path.name for path in (layout.root / "superseded" / "1").iterdir()) == [
        "dataset", "log", "manifest.json", "summary.json"
    ]  # fmt: skip
    assert [path.name for path in layout.root.rglob("*") if "superseded" not in path.parts] == []
    assert layout.supersede() is None


def test_run_that_began_after_an_unnamed_move_is_another(tmp_path, monkeypatch):
    layout = RunLayout(tmp_path / "run")
    begun_run(layout)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed_after(4))
        with pytest.raises(KeyboardInterrupt):
            layout.supersede()
    layout.check_usable()
    layout.manifest.write_text("two")

    layout.supersede()

    moved = layout.root / "superseded"
    assert [(moved / n / "manifest.json").read_text() for n in "12"] == ["one", "two"]


def killed_after(num_renames):
    """`Path.rename` of a process that is killed when it has done so many."""
    real, done = Path.rename, []

    def rename(self, target):
        if len(done) == num_renames:
            raise KeyboardInterrupt
        done.append(self)
        return real(self, target)

    return rename

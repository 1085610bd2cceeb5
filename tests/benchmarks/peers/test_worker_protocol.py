"""A peer's worker, which has the standard library alone, understands the parent's messages, and the parent it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.errors import MeasurementError
from benchmarks.messages import Generate, Load
from benchmarks.worker_process import WorkerProcess, WorkerProgram

STUB = Path(__file__).with_name("stub_worker.py")
ROOT = Path(__file__).parents[3]
PROGRAM = WorkerProgram([sys.executable, str(STUB)], {"PYTHONPATH": str(ROOT)})
LOAD = Load(model="none", dtype="fp32", device="cpu", threads=1, prompts=[[1, 5], [7]])


def test_it_loads_and_generates_in_a_process_of_its_own() -> None:
    with WorkerProcess("stub", LOAD, PROGRAM) as worker:
        loaded = worker.load()
        assert 0 < loaded.rss_after_imports_bytes <= loaded.rss_ready_bytes
        answer = worker.generate(Generate(max_new_tokens=3))
        assert answer.token_ids == [[5, 6, 7], [7, 8, 9]]
        assert answer.seconds > 0
        assert answer.peak_rss_bytes >= loaded.rss_after_imports_bytes
        assert worker.generate(Generate(max_new_tokens=2, prompts=[[40]])).token_ids == [[40, 41]]
        assert worker.pss_bytes() > 0


def test_a_peer_that_cannot_do_it_says_why() -> None:
    load = msgspec.structs.replace(LOAD, dtype="bf16")
    with WorkerProcess("stub", load, PROGRAM) as worker, pytest.raises(MeasurementError, match="counts in fp32 alone"):
        worker.load()


def test_the_protocol_runs_on_the_standard_library_alone() -> None:
    """As in the environments of the peers: no site-packages, and on their Python's syntax."""
    protocol = ROOT / "benchmarks" / "peers" / "worker_protocol.py"
    code = "import sys; sys.path.insert(0, sys.argv[1]); import benchmarks.peers.worker_protocol"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(ROOT)], check=True)
    for file in (protocol, *protocol.parent.glob("*_worker.py")):
        compile_for_python_3_11(file)


def compile_for_python_3_11(file: Path) -> None:
    import ast

    ast.parse(file.read_text(), filename=str(file), feature_version=(3, 11))

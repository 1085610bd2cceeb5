"""A stub server in its own process, data files, and the client as a process where it is to be killed."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

STUB = Path(__file__).with_name("stub_server.py")


@dataclass(frozen=True)
class StubServer:
    url: str
    journal: Path
    process: subprocess.Popen[str]

    def asked(self) -> list[dict[str, Any]]:
        """Every request so far, {path, question, body}, in order of arrival."""
        if not self.journal.exists():
            return []
        return [json.loads(line) for line in self.journal.read_text().splitlines()]


type StartStub = Callable[..., StubServer]


@pytest.fixture
def start_stub(tmp_path: Path) -> Iterator[StartStub]:
    """Starts stub servers; keywords are those that `stub_server.Stub` reads."""
    processes: list[subprocess.Popen[str]] = []

    def start(**config: Any) -> StubServer:
        folder = tmp_path / f"stub{len(processes)}"
        folder.mkdir()
        journal, file = folder / "journal.jsonl", folder / "config.json"
        file.write_text(json.dumps({**config, "journal": str(journal)}))
        process = subprocess.Popen([sys.executable, str(STUB), str(file)], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        return StubServer(f"http://127.0.0.1:{port}", journal, process)

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@dataclass(frozen=True)
class ClientProcess:
    """`megaserve evaluate` in a process of its own."""

    run: Path
    process: subprocess.Popen[bytes]

    def wait_for_lines(self, count: int) -> None:
        """Until the log has so many lines."""
        deadline = time.monotonic() + 60.0
        while sum(path.read_bytes().count(b"\n") for path in (self.run / "log").glob("*.jsonl")) < count:
            assert self.process.poll() is None, "the client ended too early"
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.fixture
def start_client() -> Iterator[Callable[..., ClientProcess]]:
    """Starts clients: server, data, run directory, further arguments; `environment` adds variables."""
    clients: list[ClientProcess] = []

    def start(url: str, data: Path, run: Path, *more: str, environment: dict[str, str] | None = None) -> ClientProcess:
        command = [sys.executable, "-m", "evaluation", "--server", url, "--data", str(data), "--output", str(run)]
        process = subprocess.Popen(
            [*command, "--no-report", *more], stderr=subprocess.DEVNULL, env={**os.environ, **(environment or {})}
        )
        clients.append(ClientProcess(run, process))
        return clients[-1]

    yield start
    for client in clients:
        client.process.kill()
        client.process.wait()


def mcq_rows(count: int) -> list[dict[str, Any]]:
    """Multiple-choice rows of a JSONL file."""
    return [
        {
            "id": f"q{number}",
            "question": f"What is {number} plus one?",
            "choices": [str(number + offset) for offset in (1, 2, 3, 4)],
            "answer": "ABCD"[number % 4],
            "category": "sums" if number % 2 else "even sums",
        }
        for number in range(count)
    ]


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows (dictionaries, or raw lines) to a JSONL file."""

    def write(rows: list[dict[str, Any] | str], name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.fixture
def mcq_file(write_jsonl: Callable[..., Path]) -> Callable[[int], Path]:
    """Writes a JSONL file with so many multiple-choice rows."""
    return lambda count: write_jsonl(mcq_rows(count), f"mcq{count}.jsonl")


@contextmanager
def _full_disk(largest_file: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """A block in which no file of this process can grow beyond so many bytes. Not the whole test, since pytest's own
    output may be a file."""
    return _full_disk

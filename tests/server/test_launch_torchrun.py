"""Several ranks: the death of one ends them all, and none outlives the HTTP process, under torchrun neither."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import psutil

SLOW = 1004


def wait_for(probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (value := probe()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return value


def rank_pids(server: Any) -> list[int]:
    pids: list[int] = httpx.get(f"{server.url}/server_info").json()["engine"]["rank_pids"]
    return pids


def test_any_ranks_death_is_noticed_and_the_parents_death_takes_all(
    start_stub_server: Any, wait_for_gone: Callable[[list[int]], None]
) -> None:
    with start_stub_server("--ranks", "2", tensor_model_parallel_size=2) as server:
        first = rank_pids(server)
        everyone = server.children()
        assert len(first) == 2
        assert sorted(everyone) == sorted(first)

        replies: list[httpx.Response] = []
        body = {"input_ids": [70], "sampling_params": {"max_new_tokens": 200, "seed": SLOW}}
        waiting = threading.Thread(
            target=lambda: replies.append(httpx.post(f"{server.url}/generate", json=body, timeout=60))
        )
        waiting.start()
        server.wait_for_log(lambda entry: entry.get("prompt") == [70])
        os.kill(first[1], signal.SIGKILL)
        waiting.join()
        assert replies[0].status_code == 503
        assert replies[0].json()["error"]["message"] == f"rank 1 (process {first[1]}) ended with SIGKILL"
        wait_for_gone(everyone)

        server.wait_until_ready()
        assert not set(rank_pids(server)) & set(first)
        everyone = server.children()
        server.process.kill()
        server.process.wait()
        wait_for_gone(everyone)


def test_torchrun_itself_may_start_the_ranks(
    smollm2_checkpoint: Path, tmp_path: Path, wait_for_gone: Callable[[list[int]], None]
) -> None:
    """`torchrun -m server`: rank 0 has the HTTP process as its child, and SIGTERM ends them all."""
    output = tmp_path / "output"
    arguments = ("--load", str(smollm2_checkpoint), "--port", "0", "--kv-cache-gb", "0.1")
    with output.open("w") as stdout, torchrun(*arguments, stdout=stdout) as launcher:
        url = wait_for(lambda: re.search(r"listening on (\S+)\n", output.read_text()))[1]
        wait_for(lambda: httpx.get(f"{url}/health/ready", timeout=60).status_code == 200)
        body = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
        assert httpx.post(f"{url}/generate", json=body, timeout=60).json()["text"] == " Paris"
        children = [child.pid for child in psutil.Process(launcher.pid).children(recursive=True)]
        assert len(children) == 2, "one rank and its HTTP process"
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(60)
        wait_for_gone(children)


def test_torchrun_ends_when_the_arguments_are_wrong(tmp_path: Path) -> None:
    missing = tmp_path / "no-such-checkpoint"
    with torchrun("--load", str(missing), "--port", "0", stderr=subprocess.PIPE) as launcher:
        _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode != 0
    assert f"megaserve: error: {missing}" in errors


@contextmanager
def torchrun(
    *argv: str, stdout: IO[str] | int = subprocess.DEVNULL, stderr: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=1",
        "-m",
        "server",
        *argv,
    ]
    with subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()

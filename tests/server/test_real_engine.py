"""The whole server on real checkpoints: memory, deaths of ranks and parent, orderly ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest


class Server:
    """`megaserve serve` in a process of its own."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "server", *flags, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        line = self.process.stdout.readline()
        assert "listening on " in line, "".join(self.errors)[-3000:]
        self.client = httpx.Client(base_url=line.split("listening on ")[1].strip(), timeout=60)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            self.errors.extend(stderr)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(60)  # the last process of the tree closes the pipe
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.client.close()

    def wait(self, wanted: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 200
        while not wanted():
            assert time.monotonic() < deadline, f"{what} did not happen: {''.join(self.errors)[-3000:]}"
            assert self.process.poll() is None, "".join(self.errors)[-3000:]
            time.sleep(0.05)

    def is_ready(self) -> bool:
        return self.client.get("/health/ready").status_code == 200

    def info(self) -> dict[str, Any]:
        reply: dict[str, Any] = self.client.get("/server_info").json()
        return reply

    def generate(self, tokens: list[int], count: int, timeout: float = 60) -> httpx.Response:
        params = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        return self.client.post("/generate", json={"input_ids": tokens, "sampling_params": params}, timeout=timeout)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def serving(*flags: str) -> Iterator[Server]:
    server = Server(*flags)
    try:
        server.wait(server.is_ready, "readiness")
        yield server
    finally:
        server.close()


def all_blocks_are_free(server: Server) -> bool:
    stats = server.info()["stats"]
    return bool(stats["num_free_blocks"] == stats["num_blocks"])


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_smollm2_stays_within_its_memory_and_ends_in_order(smollm2_checkpoint: Path) -> None:
    with serving("--load", str(smollm2_checkpoint), "--dtype", "fp32", "--kv-cache-gb", "1") as server:
        engine = server.info()["engine"]
        growth = engine["rss_ready_bytes"] - engine["rss_after_imports_bytes"]
        # Packed copies included; the embedding is there twice, as a table and as the packed output layer.
        assert growth < 1.4 * engine["weights_bytes_per_rank"]
        message = {"role": "user", "content": "Say hello."}
        chat = server.client.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 4})
        assert chat.status_code == 200
        mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "libtorch" not in mapped
        assert "megatron" not in mapped
        descendants = server.descendants()
        assert engine["rank_pids"] == [process.pid for process in descendants]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert all(gone(process) for process in descendants)


@pytest.fixture(scope="module")
def two_ranks(padded_checkpoint: Path) -> Iterator[Server]:
    with serving(
        "--load", str(padded_checkpoint), "--tensor-model-parallel-size", "2", "--kv-cache-gb", "0.02", "--threads", "1"
    ) as server:
        yield server


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_fails_what_is_pending_and_service_returns(two_ranks: Server, rank: int) -> None:
    server = two_ranks
    expected = server.generate([1, 2, 3], 5).json()["output_ids"]
    replies: list[httpx.Response] = []
    # Far more tokens than are made before the kill; an error has to come within 5 s of it.
    pending = threading.Thread(target=lambda: replies.append(server.generate([4] * 50, 3500, timeout=120)))
    pending.start()
    server.wait(lambda: server.info()["stats"]["num_running"] == 1, "a running request")
    os.kill(server.info()["engine"]["rank_pids"][rank], signal.SIGKILL)
    pending.join(timeout=5)
    assert not pending.is_alive()
    assert replies[0].status_code == 503
    assert "error" in replies[0].json()
    readiness = server.client.get("/health/ready")
    assert readiness.status_code == 503
    assert readiness.json()["reason"]
    assert server.client.get("/health").status_code == 200
    server.wait(server.is_ready, "recovery")
    assert server.generate([1, 2, 3], 5).json()["output_ids"] == expected
    server.wait(lambda: all_blocks_are_free(server), "free blocks")


def test_requests_larger_than_the_cache_or_vocabulary_are_refused_and_harm_nobody(two_ranks: Server) -> None:
    limits = two_ranks.info()["engine"]["limits"]
    capacity = limits["num_blocks"] * limits["block_size"]
    too_long = two_ranks.generate([1] * (capacity + 1), 1)
    assert too_long.status_code == 400
    assert str(capacity + 1) in too_long.text
    padding_id = two_ranks.generate([131], 1)
    assert padding_id.status_code == 400
    assert "131" in padding_id.text
    assert two_ranks.generate([130], 3).status_code == 200


def test_a_killed_parent_leaves_no_process_behind(padded_checkpoint: Path) -> None:
    with serving("--load", str(padded_checkpoint), "--kv-cache-gb", "0.01", "--threads", "1") as server:
        descendants = server.descendants()
        assert len(descendants) == 1
        server.process.kill()
        server.process.wait()
        psutil.wait_procs(descendants, timeout=60)
        assert all(gone(process) for process in descendants)

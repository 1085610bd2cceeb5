"""A peer's side of benchmarks/messages.py, for its own environment: the standard library alone, on Python 3.11.

One JSON message per line comes in on standard input, and one answer each goes out on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO


class PeerError(Exception):
    """This peer cannot do what it is asked on this machine; the message says why."""


@dataclass(frozen=True)
class LoadRequest:
    """What to load. model: in the peer's own format. dtype: "fp32" or "bf16". max_requests: that run at a time."""

    model: Path
    dtype: str
    threads: int
    max_requests: int


class Engine(Protocol):
    """A peer that is loaded."""

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        """Each prompt's greedy continuation, exactly so long; ends of sequence are ignored, nothing is reused."""


LoadEngine = Callable[[LoadRequest], Engine]


def run_worker(load_engine: LoadEngine) -> None:
    """Until standard input ends. What libraries print goes to standard error."""
    with _answer_stream() as stream:
        for answer in answers(load_engine, sys.stdin):
            stream.write(json.dumps(answer) + "\n")
            stream.flush()


def answers(load_engine: LoadEngine, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """One for each line; after a failure no more."""
    messages = map(json.loads, lines)
    try:
        load = next(messages)
        assert load["type"] == "Load", "the first message says what to load"
        yield from _serve(load_engine, load, messages)
    except Exception as error:  # whatever ends this process, the parent waits for an answer
        reason = str(error) if isinstance(error, PeerError) else f"{type(error).__name__}: {error}"
        yield {"type": "Failed", "reason": reason}


def _serve(
    load_engine: LoadEngine, load: dict[str, Any], commands: Iterator[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    rss_after_imports = _status_bytes("VmRSS")
    started = time.perf_counter()
    request = LoadRequest(Path(load["model"]), load["dtype"], load["threads"], max_requests=len(load["prompts"]))
    engine = load_engine(request)
    yield {
        "type": "Loaded",
        "load_seconds": time.perf_counter() - started,
        "rss_after_imports_bytes": rss_after_imports,
        "rss_ready_bytes": _status_bytes("VmRSS"),
        "weights_bytes": 0,  # not known of every peer
    }
    for command in commands:
        assert command["type"] == "Generate", "a peer generates, and nothing else"
        prompts = command.get("prompts") or load["prompts"]
        started = time.perf_counter()
        token_ids = engine.generate(prompts, command["max_new_tokens"])
        seconds = time.perf_counter() - started
        peak_rss_bytes = _status_bytes("VmHWM")
        yield {"type": "Generated", "seconds": seconds, "token_ids": token_ids, "peak_rss_bytes": peak_rss_bytes}


def _answer_stream() -> TextIO:
    """Standard output as it was; from now on it and standard error are one, also for code that is not Python."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream


def _status_bytes(name: str) -> int:
    """A size in kB out of /proc/self/status (proc(5))."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)

"""`python -m benchmarks.http_overhead`: what the HTTP layer adds, in time, between sockets and the engine.

Three processes: the whole HTTP process, an engine that computes nothing, and this one, whose clients all begin at once
and read one stream each. Two durations are taken, both on the machine's monotonic clock:

request: from the writing of a request to its arrival at the engine's scheduler.
token: from the engine's sending of a token to the reading of its event.

The clients' own work is part of both, and competes for the processor where there are few cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine
from server.process_lifetime import bound_command

CONCURRENCIES = (1, 64, 256)
NUM_TOKENS = 40
STEP_SECONDS = 0.05
_START_TIMEOUT = 60.0


class Stream(NamedTuple):
    """One client's times: when it had written its request, and when it read each token.

    num_events: fewer than tokens where the HTTP process did not keep up and sent several in one event.
    """

    written: float
    read: list[float]
    num_events: int


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_overhead", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5, help="rounds per number of streams; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole result there")
    arguments = parser.parse_args(argv)
    result = measure(CONCURRENCIES, arguments.repetitions)
    print_result(result)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1))
    return 0


def measure(concurrencies: Sequence[int], repetitions: int) -> dict[str, Any]:
    """All rounds on one server, a short one first to warm up; numbers of streams in turn."""
    rounds: dict[int, list[dict[str, float]]] = {concurrency: [] for concurrency in concurrencies}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        command = [sys.executable, "-m", "benchmarks.http_overhead_server", name, str(STEP_SECONDS)]
        with subprocess.Popen(bound_command(command), stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                url = server.stdout.readline().strip()
                _wait_until_ready(url)
                _round(url, directory, concurrencies[0])
                for _ in range(repetitions):
                    for concurrency in concurrencies:
                        rounds[concurrency].append(_round(url, directory, concurrency))
            finally:
                server.terminate()
    return {
        "medians": {concurrency: _medians(found) for concurrency, found in rounds.items()},
        "rounds": rounds,
        "num_tokens": NUM_TOKENS,
        "step_seconds": STEP_SECONDS,
        "machine": describe_machine(),
    }


def print_result(result: dict[str, Any]) -> None:
    """Medians over the rounds."""
    table = Table(title=f"HTTP layer, ms; a token every {1000 * STEP_SECONDS:.0f} ms on each stream")
    figures = next(iter(result["medians"].values()))
    for column in ("streams", *figures):
        table.add_column(column, justify="right")
    for concurrency, values in result["medians"].items():
        table.add_row(str(concurrency), *(f"{value:.2f}" for value in values.values()))
    Console().print(table)


def _round(url: str, directory: Path, concurrency: int) -> dict[str, float]:
    times_file = directory / "times.json"
    times_file.unlink(missing_ok=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        streams = runner.run(_ask_all(url, concurrency))
    engine = {int(client): times for client, times in _read_times(times_file).items()}
    requests, tokens = [], []
    for client, stream in enumerate(streams):
        arrived, *sent = engine[client]
        requests.append(1000 * (arrived - stream.written))
        assert len(stream.read) == len(sent) == NUM_TOKENS, "every token is one character"
        tokens += [1000 * (read - made) for made, read in zip(sent, stream.read, strict=True)]
    return {
        "request p50": statistics.median(requests),
        "request max": max(requests),
        "token p50": statistics.median(tokens),
        "token p95": statistics.quantiles(tokens, n=20)[-1],
        "token max": max(tokens),
        "tokens per event": len(tokens) / sum(stream.num_events for stream in streams),
    }


def _read_times(file: Path) -> dict[str, list[float]]:
    """What the engine wrote after its last token, which the clients may have read before."""
    deadline = time.monotonic() + 5
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    times: dict[str, list[float]] = json.loads(file.read_text())
    return times


async def _ask_all(url: str, concurrency: int) -> list[Stream]:
    """Connections first, then all requests at once."""
    parts = urlsplit(url)
    connections = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(concurrency)]
    streams = (_ask(client, reader, writer) for client, (reader, writer) in enumerate(connections))
    try:
        return await asyncio.gather(*streams)
    finally:
        for _, writer in connections:
            writer.close()


async def _ask(client: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Stream:
    """A prompt whose first token is the client's number; the stub engine knows it by that."""
    body = {"prompt": [client, *range(100)], "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    written = time.monotonic()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    status = await reader.readline()
    if b" 200 " not in status:
        raise ConnectionError(f"the server answered {status!r}")
    read: list[float] = []
    num_events = 0
    while b"[DONE]" not in (line := await reader.readline()):
        if not line:
            raise ConnectionError("the server closed the connection")
        num_tokens = _num_characters(line)
        if num_tokens:
            num_events += 1
            read += [time.monotonic()] * num_tokens
    return Stream(written, read, num_events)


def _num_characters(line: bytes) -> int:
    """Of an event's text; parsing it as JSON would take longer than what is measured."""
    _, _, rest = line.partition(b'"text":"')
    return rest.find(b'"') if rest else 0


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        try:
            with urlopen(f"{url}/health/ready"):
                return
        except OSError:  # refused, or 503 while the stub engine starts
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}


if __name__ == "__main__":
    sys.exit(main())

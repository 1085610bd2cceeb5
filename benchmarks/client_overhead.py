"""What the evaluation client costs per question, against a server that answers at once (`client_overhead_stub`).

`python -m benchmarks.client_overhead [--requests N] [--concurrency N] [--json FILE]`. Client and stub are processes of
their own and share the machine's cores. The client is the command as people give it: it reads a data file, asks, syncs
its log, and writes the results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.errors import BenchmarkError, MeasurementError

_SAMPLE_SECONDS = 0.02
_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Overhead:
    """requests_per_second: from the first dispatch to the last reply. client_cpu_ms, stub_cpu_ms: per request, imports
    and results included. growth_bytes: of the client's resident memory from half of the answers to the last look before
    all were there. peak_rss_bytes: of the whole command."""

    requests: int
    concurrency: int
    requests_per_second: float
    client_cpu_ms: float
    stub_cpu_ms: float
    growth_bytes: int
    peak_rss_bytes: int


def measure(num_requests: int, concurrency: int) -> Overhead:
    """One run of the client. MeasurementError when it does not answer every question."""
    with tempfile.TemporaryDirectory(prefix="megaserve-overhead-") as name, _stub() as (stub, url):
        folder = Path(name)
        data, run = folder / "data.jsonl", folder / "run"
        _write_questions(data, num_requests)
        client = subprocess.Popen(
            [
                *(sys.executable, "-m", "evaluation", "--server", url, "--data", str(data), "--output", str(run)),
                *("--concurrency", str(concurrency), "--no-report", "--scorer", "none"),
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            growth, peak, cpu_seconds = _watch(client, run / "log", num_requests)
        finally:
            client.kill()
            status = client.wait()
        stub_seconds = sum(psutil.Process(stub.pid).cpu_times()[:2])
        if status != 0:
            raise MeasurementError(f"the evaluation client ended with {status}")
        summary = json.loads((run / "summary.json").read_text())
    if summary["done"] != num_requests:
        raise MeasurementError(f"{summary['done']} of {num_requests} questions were answered")
    return Overhead(
        requests=num_requests,
        concurrency=concurrency,
        requests_per_second=summary["requests_per_second"],
        client_cpu_ms=1000 * cpu_seconds / num_requests,
        stub_cpu_ms=1000 * stub_seconds / num_requests,
        growth_bytes=growth,
        peak_rss_bytes=peak,
    )


@contextmanager
def _stub() -> Iterator[tuple[subprocess.Popen[str], str]]:
    stub = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.client_overhead_stub"], stdout=subprocess.PIPE, text=True
    )
    assert stub.stdout is not None
    try:
        yield stub, f"http://127.0.0.1:{int(stub.stdout.readline())}"
    finally:
        stub.kill()
        stub.wait()
        stub.stdout.close()


def _write_questions(path: Path, count: int) -> None:
    with path.open("w") as file:
        for number in range(count):
            choices = [f"{number + 1}", f"{number + 2}", f"{number + 3}", f"{number + 4}"]
            row = {"id": number, "question": f"What is {number} plus two?", "choices": choices, "answer": "B"}
            file.write(json.dumps(row) + "\n")


def _watch(client: subprocess.Popen[bytes], log: Path, num_requests: int) -> tuple[int, int, float]:
    """Growth of resident memory over the second half, its peak, and CPU seconds, until the client has ended."""
    at_half = last = peak = 0
    cpu_seconds = 0.0
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    counter, process = _LineCounter(log), psutil.Process(client.pid)
    while client.poll() is None:
        if time.monotonic() > deadline:
            raise MeasurementError(f"the evaluation client took longer than {_TIMEOUT_SECONDS:g} seconds")
        try:
            resident, cpu_seconds = process.memory_info().rss, sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:  # ended since it was asked
            break
        peak = max(peak, resident)
        lines = counter.count()  # after the look at the memory: what is below `num_requests` now was so then
        if num_requests / 2 <= lines < num_requests:
            at_half, last = at_half or resident, resident
        time.sleep(_SAMPLE_SECONDS)
    return last - at_half, peak, cpu_seconds


class _LineCounter:
    """Lines of a log that grows, each byte read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offset = 0
        self._lines = 0

    def count(self) -> int:
        for path in self._folder.glob("*.jsonl"):  # one client, one file
            with path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            self._offset += len(data)
            self._lines += data.count(b"\n")
        return self._lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the evaluation client against a server that answers at once.")
    parser.add_argument("--requests", type=int, default=20_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--concurrency", type=int, default=64, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    arguments = parser.parse_args()
    try:
        overhead = measure(arguments.requests, arguments.concurrency)
    except BenchmarkError as error:
        print(f"benchmarks.client_overhead: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(overhead), indent=1) + "\n")
    print(f"{overhead.requests_per_second:.0f} requests/s at {overhead.concurrency} under way")
    print(f"CPU per request: client {overhead.client_cpu_ms:.2f} ms, stub {overhead.stub_cpu_ms:.2f} ms")
    growth, peak = overhead.growth_bytes / 1e6, overhead.peak_rss_bytes / 1e6
    print(f"Memory: {growth:.1f} MB more over the second half, peak {peak:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Faults on the way to a real server leave no trace in the final table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from evaluation.cli import main

SEED = 3
ROWS = 60
PROXY = Path(__file__).with_name("fault_proxy.py")


@pytest.fixture
def proxy(vlm_server):
    """URL of a proxy that spoils replies, and the process, which prints what it did."""
    command = [sys.executable, str(PROXY), vlm_server.url, str(SEED)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_table_is_that_of_a_run_without_faults(proxy, vlm_server, picture_questions, tmp_path):
    print(f"seed {SEED}")
    url, process = proxy
    data, faulty, calm = str(picture_questions(ROWS)), tmp_path / "faulty", tmp_path / "calm"
    flags = ["--data", data, "--max-new-tokens", "8", "--no-report", "--concurrency", "16"]

    assert main(["--server", url, *flags, "--timeout", "3", "--output", str(faulty)]) == 0
    assert main(["--server", vlm_server.url, *flags, "--output", str(calm)]) == 0

    for name in ("export/results.tsv", "scores/mcq.jsonl", "scores/exact_match.jsonl"):
        assert (faulty / name).read_bytes() == (calm / name).read_bytes()
    process.kill()
    met = Counter(process.stdout.read().split())
    assert set(met) == {"429", "500", "hang", "half_body", "null_content", "orphan_tag", "reset"}, met
    states = json.loads((faulty / "summary.json").read_text())["thinking"]["states"]
    assert states["close_only"] == met["orphan_tag"]

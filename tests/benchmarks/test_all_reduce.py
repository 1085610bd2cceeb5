"""The cost of sums between ranks, on a tiny model: every size and batch has a figure for both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.all_reduce import WAYS, measure, print_result
from benchmarks.errors import BenchmarkError

pytestmark = pytest.mark.proof


def test_both_ways_are_timed_between_two_ranks(padded_checkpoint: Path) -> None:
    result = measure(padded_checkpoint, 2, 1, ["--threads", "1"])
    assert {(row["dtype"], row["rows"]) for row in result["sums"]} >= {("fp32", 1), ("bf16", 512)}
    assert [row["batch size"] for row in result["decode"]] == [1, 16]
    for row in (*result["sums"], *result["decode"]):
        assert all(row[way] > 0 for way in WAYS)
    assert (result["ranks"], result["threads"], result["dtype"]) == (2, 1, "fp32")
    console = Console(record=True, width=120)
    print_result(result, console)
    assert "Decode step, 2 ranks of 1 threads" in console.export_text()


def test_heads_that_ranks_cannot_share_are_told(padded_checkpoint: Path) -> None:
    with pytest.raises(BenchmarkError, match="num_attention_heads"):
        measure(padded_checkpoint, 3, 1)

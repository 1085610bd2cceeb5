"""Three processes: the ways to exchange, which one is chosen, and what remains when one of the ranks is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SIZE = 3


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank, of ranks 0 and 1."""
    directory = tmp_path_factory.mktemp("ranks")
    script = str(Path(__file__).with_name("collectives_rank.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(directory), str(rank)], stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(_SIZE)
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, -signal.SIGKILL], "\n".join(errors)[-4000:]
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_both_ways_sum_in_the_order_of_ranks_and_join_shards(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["wrong through shared memory"] == []
        assert rank["wrong by torch"] == []


def test_the_memory_has_no_name_that_could_remain(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        (mapping,) = rank["maps"]
        assert mapping.endswith("/memfd:megaserve-collectives (deleted)")


def test_a_killed_rank_fails_the_others_at_once(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["end of a rank"] == "the process of rank 2 has ended"


def test_without_kernels_torch_serves_or_the_flag_is_refused(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        fallback, refusal = rank["without kernels"]
        assert fallback == "TorchCollectives"
        for text in (refusal, rank["half precision"]):
            assert text.startswith("--all-reduce shared_memory is not possible: it needs the CPU kernels")


def test_memory_that_cannot_be_had_is_told_once(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        found = rank["without memory"]
        assert found["fallback"] == "TorchCollectives"
        assert "File too large" in found["refusal"]
    ((level, message),) = seen[0]["without memory"]["log"]
    assert level == "WARNING"
    assert "File too large" in message
    assert seen[1]["without memory"]["log"] == []

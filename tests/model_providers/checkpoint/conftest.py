"""Tiny checkpoints in each layout, written as Megatron writes them, with whatever args a test wants."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

EMBEDDING = "embedding.word_embeddings.weight"


class RunsPython:
    """Unpickled the ordinary way, it runs Python code that creates the file `marker`."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return (exec, (f"open({str(self._marker)!r}, 'w').close()",))


class RunsCommand:
    """Unpickled the ordinary way, it runs a shell command that creates the file `marker`."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return (os.system, (f"touch {self._marker}",))


def common_state(args: Any, **more: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"iteration": 7, "checkpoint_version": 3.0, **more}
    return state if args is None else {**state, "args": args}


def dcp_save(contents: dict[str, Any], directory: Path) -> None:
    with warnings.catch_warnings():  # it says that there is one process, as intended
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        planner = DefaultSavePlanner(flatten_state_dict=False)
        dcp.save(contents, checkpoint_id=directory, planner=planner, no_dist=True)


def write_torch_dist(directory: Path, state: Any) -> Path:
    """Newer layout: the common state is a byte object among the shards."""
    contents = {EMBEDDING: torch.zeros(8, 4, dtype=torch.bfloat16), "common_state/shard_0_1": [state]}
    dcp_save(contents, directory)
    return directory


def write_common_pt(directory: Path, state: Any) -> Path:
    """Older layout: the common state is a file beside the shards."""
    dcp_save({EMBEDDING: torch.zeros(8, 4)}, directory)
    torch.save(state, directory / "common.pt")
    return directory


def write_legacy(directory: Path, state: dict[str, Any], ranks: int = 1) -> Path:
    for rank in range(ranks):
        part = directory / f"mp_rank_{rank:02d}"
        part.mkdir(parents=True)
        torch.save({**state, "model": {EMBEDDING: torch.zeros(8, 4)}}, part / "model_optim_rng.pt")
    return directory


WRITERS: dict[str, Callable[[Path, dict[str, Any]], Path]] = {
    "torch_dist": write_torch_dist,
    "common_pt": write_common_pt,
    "legacy": write_legacy,
}


@pytest.fixture(params=sorted(WRITERS))
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plant(tmp_path: Path, layout: str) -> Callable[..., Path]:
    """plant(args, name=...) -> the iteration directory, of the layout under test, below `tmp_path / "ck"`."""

    def write(args: Any, name: str = "iter_0000007", **more: Any) -> Path:
        return WRITERS[layout](tmp_path / "ck" / name, common_state(args, **more))

    return write


@pytest.fixture
def save_dcp() -> Callable[[dict[str, Any], Path], None]:
    """torch.distributed.checkpoint.save in this one process."""
    return dcp_save


@pytest.fixture
def args() -> argparse.Namespace:
    return argparse.Namespace(num_layers=2, hidden_size=4, params_dtype=torch.bfloat16, tensor_model_parallel_size=4)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Exists afterwards if, and only if, code of a checkpoint ran."""
    return tmp_path / "code_ran"


@pytest.fixture(params=[RunsPython, RunsCommand])
def hostile(request: pytest.FixtureRequest, marker: Path) -> Any:
    """An object that executes code when it is unpickled the ordinary way."""
    return request.param(marker)

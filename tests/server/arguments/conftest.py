"""Planted checkpoints, tokenizers, and a resolution run in this process."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

# As Megatron's training saves it, cut down to what these tests look at.
SAVED: Mapping[str, Any] = {
    "num_layers": 2,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "group_query_attention": True,
    "num_query_groups": 3,
    "ffn_hidden_size": 96,
    "kv_channels": 8,
    "max_position_embeddings": 128,
    "seq_length": 64,
    "padded_vocab_size": 128,
    "swiglu": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "rotary_base": 5000,
    "untie_embeddings_and_output_weights": True,
    "bf16": True,
    "params_dtype": torch.bfloat16,
    "tensor_model_parallel_size": 8,
    "lr": 0.1,
    "use_flash_attn": True,
}


@dataclass(frozen=True)
class Resolved:
    """What `--print-resolved-args=json` printed, and the exit status."""

    status: int
    document: dict[str, Any]

    def __getitem__(self, name: str) -> dict[str, Any]:
        (found,) = (a for a in self.document["arguments"] if a["arg"] == name)
        return dict(found)

    def value_and_source(self, name: str) -> tuple[Any, str]:
        return self[name]["value"], self[name]["source"]


def write_tokenizer(directory: Path, ids: int) -> Path:
    """A tokenizer.json with ids 0..ids-1, the last of them an added token."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {
        "model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(ids - 1)}, "merges": []},
        "added_tokens": [{"id": ids - 1, "content": "<end>"}],
    }
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return directory


def write_legacy(directory: Path, args: Mapping[str, Any] | None) -> Path:
    part = directory / "iter_0000007" / "mp_rank_00"
    part.mkdir(parents=True)
    state: dict[str, Any] = {"iteration": 7, "checkpoint_version": 3.0, "model": {}}
    if args is not None:
        state["args"] = argparse.Namespace(**args)
    torch.save(state, part / "model_optim_rng.pt")
    (directory / "latest_checkpointed_iteration.txt").write_text("7")
    return directory


@pytest.fixture
def plant(tmp_path: Path) -> Callable[..., Path]:
    """plant(hidden_size=8, ...) -> a checkpoint with SAVED, some of it replaced, and a tokenizer of 120 ids beside it.

    A value of `...` leaves an argument out.
    """

    def write(name: str = "ck", **changes: Any) -> Path:
        args = {key: value for key, value in {**SAVED, **changes}.items() if value is not ...}
        directory = write_legacy(tmp_path / name, args)
        write_tokenizer(directory, 120)
        return directory

    return write


@pytest.fixture
def plant_without_args(tmp_path: Path) -> Path:
    return write_tokenizer(write_legacy(tmp_path / "argless", None), 120)


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> Callable[..., Path]:
    """make_tokenizer(ids, name="tok") -> a directory."""

    def make(ids: int, name: str = "tok") -> Path:
        return write_tokenizer(tmp_path / name, ids)

    return make


@pytest.fixture
def resolve() -> Callable[..., Resolved]:
    """resolve(load, *flags): as in the resolver's process, but in this one."""
    from server.arguments.resolve_command import run

    def resolve(load: Path, *flags: str) -> Resolved:
        stdout = io.StringIO()
        status = run(["--load", str(load), *flags, "--print-resolved-args=json"], out=None, stdout=stdout)
        return Resolved(status, json.loads(stdout.getvalue()))

    return resolve

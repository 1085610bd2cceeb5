"""`megaserve inspect`: kind, args and tensors, in tables and in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from server.arguments.inspect_command import main


@pytest.fixture
def checkpoint(plant: Callable[..., Path]) -> Path:
    load = plant(language_model_type="llama3_8b")
    file = load / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
    state = torch.load(file, weights_only=False)
    state["model"] = {"decoder.final_layernorm.weight": torch.ones(48, dtype=torch.bfloat16)}
    torch.save(state, file)
    return load


def test_json(checkpoint: Path, capsys: Any) -> None:
    assert main([str(checkpoint), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kind"] == "vlm"
    assert shown["args"]["params_dtype"] == "bfloat16"
    assert shown["checkpoint"]["iteration"] == 7
    assert shown["tensors"] == [
        {
            "name": "decoder.final_layernorm.weight",
            "shape": [48],
            "dtype": "bfloat16",
            "bytes": 96,
            "part": "mp_rank_00",
        }
    ]


def test_tables(checkpoint: Path, capsys: Any) -> None:
    assert main([str(checkpoint)]) == 0
    shown = capsys.readouterr().out
    for text in ("model kind: vlm", "rotary_base", "5000", "decoder.final_layernorm.weight", "96", "Tensors: 1"):
        assert text in shown


def test_a_checkpoint_without_args(plant_without_args: Path, capsys: Any) -> None:
    assert main([str(plant_without_args), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kind"] is None
    assert "holds no args" in shown["reasons"][0]


def test_an_unreadable_checkpoint(tmp_path: Path, capsys: Any) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere: does not exist" in capsys.readouterr().err

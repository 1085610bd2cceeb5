"""Resolved values, JSON types as they are, build the same TransformerConfig as the training run's own."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from model_providers.checkpoint.peek_values import json_value, megatron_values

_FLAGS = (
    *("--num-layers=2", "--hidden-size=48", "--num-attention-heads=6", "--group-query-attention"),
    *("--num-query-groups=3", "--ffn-hidden-size=96", "--max-position-embeddings=128", "--seq-length=64"),
    *("--swiglu", "--normalization=RMSNorm", "--disable-bias-linear", "--position-embedding-type=rope"),
    *("--rotary-base=5000", "--norm-epsilon=1e-6", "--padded-vocab-size=128", "--vocab-size=120", "--bf16"),
    *("--attention-backend=flash", "--no-rope-fusion", "--qk-layernorm"),
)


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    from model_providers.checkpoint.training_args import training_args

    return dict(vars(training_args(_FLAGS)))


def test_the_same_model_comes_out(trained: dict[str, Any], plant: Callable[..., Path], resolve: Any) -> None:
    from megatron.training.argument_utils import core_transformer_config_from_args

    from model_providers.config import ModelConfig
    from model_providers.transformer_config import transformer_config

    resolved = resolve(plant(**trained), "--dtype", "bf16")
    assert resolved.document["conflicts"] == []
    ours = transformer_config(
        ModelConfig(
            values=megatron_values({a["arg"]: a["value"] for a in resolved.document["arguments"]}),
            checkpoint=Path(resolved.document["checkpoint"]["path"]),
            checkpoint_format="torch",
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            tensor_model_parallel_size=1,
            vocab_size=120,
            max_model_len=128,
            packed_linears=False,
        )
    )
    theirs = core_transformer_config_from_args(Namespace(**trained))
    for name in (
        *("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size"),
        *("normalization", "layernorm_epsilon", "gated_linear_unit", "activation_func", "add_bias_linear"),
        *("add_qkv_bias", "qk_layernorm", "params_dtype", "bf16", "rotary_interleaved", "softmax_type"),
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.params_dtype is torch.bfloat16


def test_every_saved_value_becomes_json(trained: dict[str, Any]) -> None:
    import json

    converted = {name: json_value(value) for name, value in trained.items()}
    assert json.loads(json.dumps(converted)) == converted
    assert converted["attention_backend"] == "flash"
    assert converted["params_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("inf"), "inf"),
        ((1, 2), [1, 2]),
        ({"b", "a"}, ["a", "b"]),
        (Path("/x"), "/x"),
        ({1: torch.float16}, {"1": "float16"}),
        (torch.nn.functional.silu, "torch.nn.functional.silu"),
        (b"x", "b'x'"),
    ],
)
def test_json_values(value: Any, expected: Any) -> None:
    assert json_value(value) == expected


def test_enumerations_and_dtypes_come_back() -> None:
    from megatron.core.transformer.enums import AttnBackend

    restored = megatron_values({"attention_backend": "flash", "params_dtype": "bfloat16", "cuda_graph_modules": []})
    assert restored == {
        "attention_backend": AttnBackend.flash,
        "params_dtype": torch.bfloat16,
        "cuda_graph_modules": [],
    }

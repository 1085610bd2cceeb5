"""Each source wins exactly where it must, for every kind of argument, and the record says so truthfully."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from server.arguments.derive import Machine
from server.arguments.sources import RANKED, choose

Plant = Callable[..., Path]


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_the_four_sources_in_order(plant: Plant, resolve: Any, config: Any) -> None:
    load = plant()
    file = config("rotary-base: 600\n")
    assert resolve(load, "--rotary-base", "700", "--config", file).value_and_source("rotary_base") == (
        700,
        "command_line",
    )
    assert resolve(load, "--config", file).value_and_source("rotary_base") == (600, "config_file")
    assert resolve(load).value_and_source("rotary_base") == (5000, "checkpoint")
    without = resolve(plant("other", rotary_base=...))
    assert without.value_and_source("rotary_base") == (10000, "default")


def test_the_record_tells_what_every_source_said(plant: Plant, resolve: Any, config: Any) -> None:
    resolved = resolve(plant(), "--rotary-base", "700", "--config", config("rotary_base: 600"))
    assert resolved["rotary_base"] == {
        "arg": "rotary_base",
        "value": 700,
        "source": "command_line",
        "command_line": 700,
        "config_file": 600,
        "checkpoint": 5000,
        "default": 10000,
        "overridden": True,
        "note": "",
    }


@pytest.mark.parametrize(("flag", "value"), [("--swiglu", True), ("--no-swiglu", False)])
@pytest.mark.parametrize("saved", [True, False])
def test_booleans_can_be_said_both_ways(plant: Plant, resolve: Any, flag: str, value: bool, saved: bool) -> None:
    resolved = resolve(plant(swiglu=saved), flag)
    assert resolved.value_and_source("swiglu") == (value, "command_line")
    assert resolved["swiglu"]["overridden"] is (saved is not value)
    assert resolve(plant("other", swiglu=saved)).value_and_source("swiglu") == (saved, "checkpoint")


def test_a_boolean_in_the_config_file(plant: Plant, resolve: Any, config: Any) -> None:
    load = plant(swiglu=True)
    assert resolve(load, "--config", config("swiglu: false")).value_and_source("swiglu") == (False, "config_file")
    assert resolve(load, "--config", config("swiglu: false"), "--swiglu")["swiglu"]["value"] is True


@pytest.mark.parametrize(
    ("saved", "name", "value"),
    [
        ({"norm_epsilon": 1e-6}, "layernorm_epsilon", 1e-6),
        ({"apply_layernorm_1p": True}, "layernorm_zero_centered_gamma", True),
        ({"disable_bias_linear": False, "add_bias_linear": ...}, "add_bias_linear", True),
        ({"disable_bias_linear": True, "add_bias_linear": True}, "add_bias_linear", False),  # as Megatron decides
        ({"norm_epsilon": 1e-6, "layernorm_epsilon": 1e-4}, "layernorm_epsilon", 1e-4),
        ({"use_rotary_position_embeddings": True, "position_embedding_type": ...}, "position_embedding_type", "rope"),
    ],
)
def test_renamed_and_negated(plant: Plant, resolve: Any, saved: dict[str, Any], name: str, value: Any) -> None:
    resolved = resolve(plant(**saved))
    assert resolved.value_and_source(name) == (value, "checkpoint")
    old = next(iter(saved))
    assert (old in resolved[name]["note"]) is (value != 1e-4)


def test_renamed_arguments_yield_to_the_command_line(plant: Plant, resolve: Any) -> None:
    resolved = resolve(plant(norm_epsilon=1e-6, disable_bias_linear=True), "--norm-epsilon", "1e-3", "--bias-linear")
    assert resolved.value_and_source("layernorm_epsilon") == (1e-3, "command_line")
    assert resolved["layernorm_epsilon"]["note"] == ""
    assert resolved.value_and_source("add_bias_linear") == (True, "command_line")
    assert resolved["add_bias_linear"]["checkpoint"] is False


def test_a_renamed_pattern(plant: Plant, resolve: Any) -> None:
    resolved = resolve(plant(hybrid_override_pattern="M*M*"))
    assert resolved.value_and_source("hybrid_layer_pattern") == ("M*M*", "checkpoint")
    assert any(c["args"] == ["hybrid_layer_pattern"] for c in resolved.document["conflicts"])


@pytest.mark.parametrize(
    ("name", "saved", "flags", "typed"),
    [
        ("num_experts", 8, ("--num-experts", "4"), 4),
        ("spec", ["a.b", "c"], ("--spec", "d.e", "f"), ["d.e", "f"]),
        ("rotary_base", 5000, ("--rotary-base", "777"), 777),
        ("rotary_percent", 0.5, ("--rotary-percent", "0.25"), 0.25),
        ("rotary_interleaved", True, ("--no-rotary-interleaved",), False),
        ("position_embedding_type", "rope", ("--position-embedding-type", "none"), "none"),
        ("normalization", "RMSNorm", ("--normalization", "LayerNorm"), "LayerNorm"),
        ("num_query_groups", 3, ("--num-query-groups", "6"), 6),
    ],
)
def test_what_megatron_forces_from_the_checkpoint_yields_to_the_command_line(
    plant: Plant, resolve: Any, name: str, saved: Any, flags: tuple[str, ...], typed: Any
) -> None:
    load = plant(**{name: saved})
    untouched, overridden = resolve(load), resolve(load, *flags)
    assert untouched.value_and_source(name) == (saved, "checkpoint")
    assert untouched[name]["command_line"] is None
    assert overridden.value_and_source(name) == (typed, "command_line")
    assert (overridden[name]["checkpoint"], overridden[name]["overridden"]) == (saved, True)


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"kv_channels": ...}, "kv_channels", 8),
        ({"kv_channels": None}, "kv_channels", 8),
        ({"ffn_hidden_size": ...}, "ffn_hidden_size", 128),
        ({"ffn_hidden_size": ..., "swiglu": False}, "ffn_hidden_size", 192),
        ({"max_position_embeddings": ...}, "max_position_embeddings", 64),
        ({"add_bias_linear": True}, "add_qkv_bias", True),
        ({"num_experts": 0}, "num_experts", None),
        ({"padded_vocab_size": ..., "vocab_size": 100}, "padded_vocab_size", 128),
    ],
)
def test_derived_values(plant: Plant, resolve: Any, changes: dict[str, Any], name: str, value: Any) -> None:
    resolved = resolve(plant(**changes))
    assert resolved.value_and_source(name) == (value, "derived")
    assert resolved[name]["note"]


def test_what_is_saved_is_not_derived(plant: Plant, resolve: Any) -> None:
    resolved = resolve(plant(kv_channels=16, ffn_hidden_size=80))
    assert resolved.value_and_source("kv_channels") == (16, "checkpoint")
    assert resolved.value_and_source("ffn_hidden_size") == (80, "checkpoint")


def test_runtime_arguments_are_never_taken_from_the_checkpoint(plant: Plant, resolve: Any) -> None:
    resolved = resolve(plant())
    assert resolved.value_and_source("tensor_model_parallel_size") == (1, "default")
    assert resolved.value_and_source("lr") == (None, "default")
    assert resolved.value_and_source("use_flash_attn") == (False, "default")
    assert resolved["tensor_model_parallel_size"]["checkpoint"] == 8
    assert "not taken over" in resolved["tensor_model_parallel_size"]["note"]


def test_typed_arguments_without_effect_are_answered(plant: Plant, resolve: Any, capfd: Any) -> None:
    resolved = resolve(plant(), "--lr", "3", "--pixel-shuffle")
    assert resolved.status == 0
    assert resolved["lr"]["note"] == "no effect: serving does not train"
    assert "warning: --lr has no effect: serving does not train" in capfd.readouterr().err
    assert "does not apply" in resolved["pixel_shuffle"]["note"]


def test_megatrons_inference_arguments_stand_for_ours(plant: Plant, resolve: Any, config: Any) -> None:
    load = plant()
    resolved = resolve(load, "--inference-max-requests", "9", "--inference-dynamic-batching-block-size", "32")
    assert resolved.value_and_source("max_running_requests") == (9, "command_line")
    assert resolved["max_running_requests"]["note"] == "from --inference-max-requests"
    assert resolved.value_and_source("block_size") == (32, "command_line")
    assert "--max-running-requests" in resolved["inference_max_requests"]["note"]
    both = resolve(load, "--inference-max-requests", "9", "--max-running-requests", "5")
    assert both.value_and_source("max_running_requests") == (5, "command_line")
    in_file = resolve(load, "--config", config("inference_max_seq_length: 32"))
    assert in_file.value_and_source("max_model_len") == (32, "config_file")


def test_number_format_on_a_cpu(plant: Plant, resolve: Any) -> None:
    load = plant()
    auto, typed, megatrons = resolve(load), resolve(load, "--dtype", "bf16"), resolve(load, "--bf16")
    assert auto.value_and_source("dtype") == ("fp32", "derived")
    assert auto.value_and_source("params_dtype") == ("float32", "derived")
    assert auto.value_and_source("bf16") == (False, "derived")
    assert (auto["bf16"]["checkpoint"], auto["bf16"]["overridden"]) == (True, True)
    for resolved in (typed, megatrons):
        assert resolved.value_and_source("dtype") == ("bf16", "command_line")
        assert resolved["bf16"]["value"] is True
        assert resolved.value_and_source("params_dtype") == ("bfloat16", "checkpoint")
    assert megatrons["dtype"]["note"] == "from --bf16"


@pytest.mark.parametrize(
    ("saved", "dtype"),
    [
        ({"bf16": True}, "bf16"),
        ({"bf16": False, "fp16": True, "params_dtype": torch.float16}, "fp16"),
        ({"bf16": ..., "params_dtype": torch.bfloat16}, "bf16"),
        ({"bf16": False, "params_dtype": torch.float32}, "fp32"),
    ],
)
def test_number_format_on_a_gpu_is_the_checkpoints(
    plant: Plant, resolve: Any, monkeypatch: pytest.MonkeyPatch, saved: dict[str, Any], dtype: str
) -> None:
    monkeypatch.setattr("server.arguments.resolve_command.this_machine", lambda: Machine(cores=12, has_gpu=True))
    resolved = resolve(plant(**saved), "--tensor-model-parallel-size", "3")
    assert resolved.value_and_source("dtype") == (dtype, "derived")
    assert resolved.value_and_source("device") == ("cuda", "derived")
    assert resolved.value_and_source("linear_backend") == ("plain", "derived")
    assert resolved.value_and_source("threads") == (4, "derived")
    assert resolve(plant("cpu", **saved), "--device", "cpu").value_and_source("dtype") == ("fp32", "derived")


@pytest.mark.parametrize(
    ("flags", "block_size", "cuda_graphs"),
    [
        ((), (256, "derived"), (True, "default")),
        (("--no-cuda-graphs", "--block-size", "512"), (512, "command_line"), (False, "command_line")),
        (("--dtype", "fp32"), (16, "derived"), (False, "derived")),
        (("--kernels", "off"), (16, "derived"), (False, "derived")),
        (("--device", "cpu", "--dtype", "bf16"), (16, "derived"), (False, "derived")),
    ],
)
def test_what_flash_attention_brings_with_it(
    plant: Plant,
    resolve: Any,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    block_size: tuple[int, str],
    cuda_graphs: tuple[bool, str],
) -> None:
    monkeypatch.setattr("server.arguments.resolve_command.this_machine", lambda: Machine(cores=12, has_gpu=True))
    resolved = resolve(plant(), *flags)
    assert resolved.status == 0
    assert resolved.value_and_source("block_size") == block_size
    assert resolved.value_and_source("cuda_graphs") == cuda_graphs


def test_lengths_threads_and_backends_are_settled(plant: Plant, resolve: Any) -> None:
    resolved = resolve(plant())
    assert resolved.value_and_source("max_model_len") == (128, "derived")
    assert resolved.value_and_source("device") == ("cpu", "derived")
    assert resolved.value_and_source("linear_backend") == ("packed", "derived")
    assert resolved["threads"]["value"] >= 1
    assert resolve(plant("other"), "--max-model-len", "32").value_and_source("max_model_len") == (32, "command_line")


def test_every_argument_appears_once_in_json_types(plant: Plant, resolve: Any) -> None:
    from server.arguments.parser import ServeParser

    document = resolve(plant()).document
    names = [a["arg"] for a in document["arguments"]]
    assert len(names) == len(set(names))
    assert set(names) == set(ServeParser().defaults) - {"help", "help_all"} | {"params_dtype"}
    assert set(document) == {"kind", "reasons", "arguments", "conflicts", "checkpoint"}
    for argument in document["arguments"]:
        assert set(argument) == {
            *("arg", "value", "source", "command_line", "config_file", "checkpoint", "default", "overridden", "note")
        }
        assert argument["source"] in (*RANKED, "derived")
    assert document["checkpoint"]["format"] == "torch"
    assert document["checkpoint"]["iteration"] == 7
    assert document["checkpoint"]["path"].endswith("iter_0000007")


def test_arguments_unknown_here_are_mentioned(plant: Plant, resolve: Any, capfd: Any) -> None:
    resolve(plant(some_new_argument=3, consumed_train_samples=5))
    error = capfd.readouterr().err
    assert "not used: some_new_argument\n" in error


_VALUES = st.one_of(st.integers(), st.booleans(), st.text(max_size=3))


@given(st.dictionaries(st.sampled_from(RANKED[:-1]), _VALUES), _VALUES)
def test_the_highest_source_that_says_anything_wins(said: dict[Any, Any], default: Any) -> None:
    sources = {source: {"rotary_base": said[source]} if source in said else {} for source in RANKED}
    sources["default"] = {"rotary_base": default}
    entry = choose("rotary_base", sources)
    winner = next((source for source in RANKED if source in said), "default")
    assert entry.source == winner
    assert entry.value == sources[winner]["rotary_base"]
    lower = RANKED[RANKED.index(winner) + 1 : -1]
    assert entry.overridden is any(source in said and said[source] != entry.value for source in lower)


def test_what_language_model_type_implies_stands_over_the_checkpoint_and_under_what_was_typed(
    plant: Plant, resolve: Any
) -> None:
    vlm = {"language_model_type": "qwen2.5_7B", "vision_model_type": "siglip", "img_h": 224, "img_w": 224}
    load = plant(**vlm, swiglu=False, add_bias_linear=True, add_qkv_bias=False, ffn_hidden_size=96)
    resolved = resolve(load)
    for name, value in (("swiglu", True), ("add_qkv_bias", True), ("ffn_hidden_size", 18944)):
        assert resolved.value_and_source(name) == (value, "model")
        assert resolved[name]["overridden"] is True
        assert "qwen2.5_7B" in resolved[name]["note"]
    # What was saved and what is implied agree: nothing to say.
    agreeing = plant("agreeing", **vlm, add_bias_linear=False)
    assert resolve(agreeing).value_and_source("add_bias_linear") == (False, "checkpoint")
    assert resolve(load, "--ffn-hidden-size", "128").value_and_source("ffn_hidden_size") == (128, "command_line")
    # A text model's name implies nothing, and neither does an unknown one.
    assert resolve(plant("gpt", swiglu=False)).value_and_source("swiglu") == (False, "checkpoint")
    unknown = plant("unknown", **vlm | {"language_model_type": "mine"}, swiglu=False)
    assert resolve(unknown).value_and_source("swiglu") == (False, "checkpoint")

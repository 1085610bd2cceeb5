"""What cannot work is refused, all at once, with the sources that disagree and the flag that resolves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.arguments.derive import Machine
from server.arguments.unsupported import REFUSALS

Plant = Callable[..., Path]


def conflicts(resolved: Any) -> dict[str, dict[str, Any]]:
    return {c["args"][0]: c for c in resolved.document["conflicts"]}


def test_none_for_a_plain_model(plant: Plant, resolve: Any) -> None:
    resolved = resolve(plant(), "--tensor-model-parallel-size", "3")
    assert (resolved.status, resolved.document["conflicts"]) == (0, [])


def test_all_are_listed_at_once(plant: Plant, resolve: Any) -> None:
    found = resolve(
        plant(num_experts=8, ffn_hidden_size=98),
        *("--tensor-model-parallel-size", "4", "--pipeline-model-parallel-size", "2", "--device", "cuda"),
    )
    assert found.status == 3
    assert set(conflicts(found)) >= {
        *("num_experts", "num_attention_heads", "num_query_groups", "ffn_hidden_size"),
        *("pipeline_model_parallel_size", "device"),
    }


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("num_attention_heads", {"num_attention_heads": 9, "group_query_attention": False, "kv_channels": 8}),
        ("num_query_groups", {}),
        ("ffn_hidden_size", {"ffn_hidden_size": 97, "num_query_groups": 6}),
    ],
)
def test_sizes_that_ranks_cannot_share(plant: Plant, resolve: Any, name: str, changes: dict[str, Any]) -> None:
    found = conflicts(resolve(plant(**changes), "--tensor-model-parallel-size", "2"))
    assert list(found) == [name]
    message = found[name]["message"]
    assert f"{name} is " in message
    assert "(checkpoint)" in message
    assert "tensor_model_parallel_size is 2 (command line)" in message
    assert found[name]["fix"].startswith("--tensor-model-parallel-size {1")


def test_the_fix_lists_sizes_that_work(plant: Plant, resolve: Any) -> None:
    load = plant()
    (found,) = conflicts(resolve(load, "--tensor-model-parallel-size", "2")).values()
    assert found["fix"] == "--tensor-model-parallel-size {1, 3}"
    assert resolve(load, "--tensor-model-parallel-size", "3").status == 0


def test_vocabulary_smaller_than_the_tokenizer(plant: Plant, resolve: Any, make_tokenizer: Any) -> None:
    tokenizer = str(make_tokenizer(129))
    found = conflicts(resolve(plant(), "--tokenizer-model", tokenizer))["vocab_size"]
    assert found["args"] == ["vocab_size", "padded_vocab_size", "tokenizer_model"]
    assert "vocab_size is 129 (derived)" in found["message"]
    assert "padded_vocab_size is 128 (checkpoint)" in found["message"]
    assert "--tokenizer-model" in found["fix"]
    assert resolve(plant("other"), "--tokenizer-model", str(make_tokenizer(128, "fits"))).status == 0


def test_vocabulary_padding_is_no_conflict(plant: Plant, resolve: Any) -> None:
    """40064 rows and 50304, 32000 and 32256: the checkpoint's rows are the truth, further ones padding."""
    resolved = resolve(plant())
    assert resolved.value_and_source("padded_vocab_size") == (128, "checkpoint")
    assert resolved.value_and_source("vocab_size") == (120, "derived")
    assert resolved["padded_vocab_size"]["note"] == "ids from 120 on are padding"


def test_a_typed_number_of_rows_cannot_differ(plant: Plant, resolve: Any) -> None:
    found = conflicts(resolve(plant(), "--padded-vocab-size", "256"))["padded_vocab_size"]
    assert "the checkpoint has 128 rows" in found["message"]


def test_tiling_with_dynamic_resolution(plant: Plant, resolve: Any) -> None:
    load = plant(language_model_type="llama3_8b", use_tiling=True, vision_model_type="radio")
    assert resolve(load).status == 0
    found = resolve(load, "--dynamic-resolution")
    assert found.status == 3
    (conflict,) = found.document["conflicts"]
    assert conflict["args"] == ["use_tiling", "dynamic_resolution"]
    assert "use_tiling is True (checkpoint) and dynamic_resolution is True (command line)" in conflict["message"]
    assert conflict["fix"] == "--no-use-tiling or --no-dynamic-resolution"
    assert resolve(load, "--dynamic-resolution", "--no-use-tiling").status == 0


@pytest.mark.parametrize(
    ("saved", "argument"),
    [
        ({"vision_model_type": "vit"}, "vision_model_type"),
        ({"vision_projection_type": "qformer"}, "vision_projection_type"),
        ({"vision_model_type": "clip", "dynamic_resolution": True}, "dynamic_resolution"),
        ({"conv_merging": True, "disable_vision_class_token": True}, "conv_merging"),
        ({"position_embedding_type": "learned_absolute"}, "position_embedding_type"),
        ({"language_model_type": "mine"}, "vision_projection_ffn_hidden_size"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    plant: Plant, resolve: Any, saved: dict[str, Any], argument: str
) -> None:
    found = resolve(plant(**{"language_model_type": "llama3_8b"} | saved))
    assert found.status == 3
    assert argument in conflicts(found)


def test_tiling_means_nothing_to_a_gpt(plant: Plant, resolve: Any) -> None:
    assert resolve(plant(), "--use-tiling", "--dynamic-resolution").status == 0


def test_torchrun_with_another_number_of_ranks(plant: Plant, resolve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    load = plant()
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert resolve(load).status == 0  # some other program's variable
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    found = conflicts(resolve(load))["tensor_model_parallel_size"]
    assert "tensor_model_parallel_size is 1 (default): torchrun started 3 ranks (WORLD_SIZE)" in found["message"]
    assert found["fix"] == "--tensor-model-parallel-size 3, or torchrun --nproc-per-node 1"
    assert resolve(load, "--tensor-model-parallel-size", "3").status == 0


@pytest.mark.parametrize(("name", "value"), [("kernels", "off"), ("dtype", "fp16")])
def test_shared_memory_is_for_kernels_and_their_number_formats(
    plant: Plant, resolve: Any, name: str, value: str
) -> None:
    flags = ("--all-reduce", "shared_memory", f"--{name}", value)
    found = conflicts(resolve(plant(), *flags, "--tensor-model-parallel-size", "3"))["all_reduce"]
    assert found["args"] == ["all_reduce", name]
    assert f"{name} is '{value}' (command line)" in found["message"]
    assert found["fix"] == "--all-reduce auto"
    assert resolve(plant("alone"), *flags).status == 0


UNSUPPORTED = {
    "num_experts": 8,
    "multi_latent_attention": True,
    "experimental_attention_variant": "dsa",
    "linear_attention_freq": 2,
    "is_hybrid_model": True,
    "hybrid_layer_pattern": "M*",
    "spec": ["a", "b"],
    "mtp_num_layers": 1,
    "heterogeneous_layers_config_path": "x.json",
    "heterogeneous_layers_config_encoded_json": "{}",
    "position_embedding_type": "mrope",
    "rope_type": "yarn",
    "no_rope_freq": 4,
    "window_size": (128, 0),
    "softmax_type": "learnable",
    "attention_output_gate": True,
    "qk_l2_norm": True,
    "normalization": "DyT",
    "glu_linear_offset": 1.0,
    "activation_func_clamp_value": 7.0,
    "apply_residual_connection_post_layernorm": True,
    "use_mup": True,
}


def test_the_table_of_examples_is_complete() -> None:
    assert set(UNSUPPORTED) == {refusal.argument for refusal in REFUSALS}


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_architectures_are_refused_by_name(plant: Plant, resolve: Any, name: str) -> None:
    resolved = resolve(plant(**{name: UNSUPPORTED[name]}))
    assert resolved.status == 3
    assert f"{name} is " in conflicts(resolved)[name]["message"]
    assert "not supported" in conflicts(resolved)[name]["message"]


@pytest.mark.parametrize(
    "changes",
    [
        {"position_embedding_type": "learned_absolute", "normalization": "LayerNorm", "add_bias_linear": True},
        {"position_embedding_type": "none"},
        {"use_rope_scaling": True, "rope_scaling_factor": 32.0},
        {"qk_layernorm": True, "add_qkv_bias": True},
        {"squared_relu": True, "swiglu": False},
        {"num_experts": 0, "spec": None, "window_size": None, "mtp_num_layers": 0},
    ],
)
def test_supported_architectures_are_not(plant: Plant, resolve: Any, changes: dict[str, Any]) -> None:
    assert resolve(plant(**changes)).document["conflicts"] == []


@pytest.mark.parametrize(
    "flags",
    [("--num-speculative-tokens", "2"), ("--fp8-format", "hybrid"), ("--use-legacy-static-engine",)],
)
def test_features_this_server_lacks_are_refused_by_name(plant: Plant, resolve: Any, flags: tuple[str, ...]) -> None:
    (conflict,) = resolve(plant(), *flags).document["conflicts"]
    assert conflict["fix"].startswith("leave --")


def test_their_harmless_values_are_not(plant: Plant, resolve: Any) -> None:
    flags = ("--num-speculative-tokens", "0", "--pipeline-model-parallel-size", "1", "--no-use-legacy-static-engine")
    assert resolve(plant(), *flags).status == 0


def test_a_checkpoint_trained_in_fp8_is_served(plant: Plant, resolve: Any) -> None:
    resolved = resolve(plant(fp8="hybrid"))
    assert resolved.status == 0
    assert resolved.value_and_source("fp8") == (None, "default")
    assert "not taken over" in resolved["fp8"]["note"]


def test_learned_positions_limit_the_length(plant: Plant, resolve: Any) -> None:
    learned = plant("learned", position_embedding_type="learned_absolute")
    assert "--max-model-len 128" in conflicts(resolve(learned, "--max-model-len", "129"))["max_model_len"]["fix"]
    rotary = resolve(plant("rotary"), "--max-model-len", "129")
    assert rotary.status == 0
    assert "beyond the 128 positions" in rotary["max_model_len"]["note"]


def test_missing_arguments_are_listed_with_their_flags(plant: Plant, resolve: Any) -> None:
    """A checkpoint whose args lack some: what is missing is listed, and the flag that supplies it does."""
    load = plant(num_layers=..., hidden_size=None)
    found = conflicts(resolve(load))
    assert found["num_layers"]["fix"] == "give --num-layers"
    assert found["hidden_size"]["fix"] == "give --hidden-size"
    assert resolve(load, "--num-layers", "2", "--hidden-size", "48").status == 0


@pytest.mark.parametrize("value", ["two", -1, 0, 2.5, [3], True])
@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "num_query_groups", "padded_vocab_size"])
def test_saved_sizes_that_are_none(plant: Plant, resolve: Any, name: str, value: Any) -> None:
    """A damaged or hand-made checkpoint; no arithmetic is tried with it."""
    found = conflicts(resolve(plant(**{name: value}), "--tensor-model-parallel-size", "3"))
    assert "must be a positive whole number" in found[name]["message"]


def test_a_gpt_with_an_image_encoder_is_not_taken_for_one(plant: Plant, resolve: Any) -> None:
    import torch

    load = plant()
    file = load / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
    state = torch.load(file, weights_only=False)
    state["model"] = {"vision_model.conv1.weight": torch.zeros(1)}
    torch.save(state, file)
    found = resolve(load)
    assert found.status == 3
    assert "image encoder" in conflicts(found)["language_model_type"]["message"]


@pytest.mark.parametrize(
    ("flag", "value", "fix"),
    [
        ("--kernels", "off", "--kernels auto"),
        ("--linear-backend", "plain", "--linear-backend packed"),
        ("--dtype", "fp16", "--dtype fp32 or --dtype bf16"),
    ],
)
def test_quantized_weights_need_the_cpu_kernels(plant: Plant, resolve: Any, flag: str, value: str, fix: str) -> None:
    checkpoint = plant()
    found = resolve(checkpoint, "--quantize", "int8", flag, value)
    assert found.status == 3
    assert conflicts(found)["quantize"]["fix"] == f"{fix}, or --quantize none"
    assert resolve(checkpoint, flag, value).status == 0


def test_a_block_size_that_flash_attention_cannot_read(
    plant: Plant, resolve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.arguments.resolve_command.this_machine", lambda: Machine(cores=12, has_gpu=True))
    load = plant()
    found = conflicts(resolve(load, "--block-size", "16"))
    assert list(found) == ["block_size"]
    assert "block_size is 16 (command line)" in found["block_size"]["message"]
    assert "a multiple of 256" in found["block_size"]["message"]
    assert found["block_size"]["fix"] == "leave --block-size out, or --kernels off"
    for flags in (("--kernels", "off"), ("--dtype", "fp32"), ("--device", "cpu")):
        assert resolve(load, "--block-size", "16", *flags).status == 0

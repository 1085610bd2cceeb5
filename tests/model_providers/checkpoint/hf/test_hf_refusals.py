"""What cannot be imported is refused by the name of the option, and damaged sources by the name of the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GemmaConfig, GPT2Config, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from model_providers.checkpoint.hf.convert import convert
from model_providers.checkpoint.hf.registry import family_of
from model_providers.errors import CheckpointError, UnsupportedModelError

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_SLIDING_QWEN: dict[str, Any] = {"use_sliding_window": True, "max_window_layers": 1, "num_hidden_layers": 2}
_UNSUPPORTED: list[tuple[PreTrainedConfig, str]] = [
    (GemmaConfig(), "model_type"),
    (LlamaConfig(quantization_config={"quant_method": "awq"}), "quantization_config"),
    (LlamaConfig(attention_bias=True), "attention_bias"),
    (LlamaConfig(mlp_bias=True), "mlp_bias"),
    (LlamaConfig(hidden_act="gelu"), "hidden_act"),
    (LlamaConfig(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}), "rope_type"),
    (LlamaConfig(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "rope_type"),
    (LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 10000.5}), "rope_theta"),
    (LlamaConfig(rope_parameters={**_LLAMA3, "low_freq_factor": 2.0}), "low_freq_factor"),
    (LlamaConfig(rope_parameters={**_LLAMA3, "original_max_position_embeddings": 4096}), "original_max_position_emb"),
    (MistralConfig(sliding_window=512, max_position_embeddings=1024), "sliding_window"),
    (Qwen2Config(**_SLIDING_QWEN), "layer_types"),
    (Qwen3Config(**_SLIDING_QWEN), "layer_types"),
    (Qwen3Config(attention_bias=True), "attention_bias"),
    (GPT2Config(activation_function="relu"), "activation_function"),
    (GPT2Config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
    (GPT2Config(scale_attn_weights=False), "scale_attn_weights"),
    (GPT2Config(add_cross_attention=True), "add_cross_attention"),
]


@pytest.mark.parametrize(("config", "option"), _UNSUPPORTED, ids=[f"{c.model_type}-{o}" for c, o in _UNSUPPORTED])
def test_unsupported_options_are_named(config: Any, option: str) -> None:
    with pytest.raises(UnsupportedModelError, match=option):
        family_of(config).megatron_flags(config)


def test_inactive_sliding_windows_are_accepted() -> None:
    for config in (MistralConfig(sliding_window=1024, max_position_embeddings=1024), Qwen2Config(sliding_window=4)):
        assert "--swiglu" in family_of(config).megatron_flags(config)


@pytest.fixture
def tiny(write_hf_model: Callable[..., Any], tmp_path: Path) -> Path:
    write_hf_model(
        LlamaConfig(
            num_hidden_layers=1, vocab_size=31, hidden_size=32, intermediate_size=48, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
        )
    )  # fmt: skip
    return tmp_path / "hf"


def _rewrite(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_missing_tensor(tiny: Path) -> None:
    _rewrite(tiny, lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"have no tensor model\.layers\.0\.mlp\.up_proj\.weight"):
        convert(tiny)


def test_superfluous_tensor(tiny: Path) -> None:
    _rewrite(tiny, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}))
    with pytest.raises(CheckpointError, match=r"does not have: \['model\.layers\.0\.self_attn\.q_proj\.bias'\]"):
        convert(tiny)


def test_buffers_of_old_exports_are_ignored(tiny: Path) -> None:
    _rewrite(tiny, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    assert "embedding.word_embeddings.weight" in convert(tiny).state_dict


def test_tied_output_layer_must_be_the_embedding(tiny: Path) -> None:
    _rewrite(tiny, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    assert "output_layer.weight" not in convert(tiny).state_dict
    _rewrite(tiny, lambda tensors: tensors["lm_head.weight"].add_(1))
    with pytest.raises(CheckpointError, match=r"ties lm_head\.weight"):
        convert(tiny)


def test_quantised_tensor(tiny: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    _rewrite(tiny, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    with pytest.raises(CheckpointError, match=r"up_proj\.weight holds torch\.int8"):
        convert(tiny)


def test_truncated_weights(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        convert(tiny)


def test_index_of_a_missing_file(tiny: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors: is listed"):
        convert(tiny)


@pytest.mark.parametrize("content", ["[]", '{"weight_map": []}', "{"])
def test_damaged_index(content: str, tiny: Path) -> None:
    (tiny / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"index\.json: not a safetensors index"):
        convert(tiny)


def test_only_pickled_weights(tiny: Path) -> None:
    (tiny / "model.safetensors").rename(tiny / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"convert pytorch_model\.bin to safetensors"):
        convert(tiny)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        convert(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model_type": "llama", "hidden_size": "wide"}', "{}"])
def test_damaged_config(content: str, tiny: Path) -> None:
    (tiny / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json: transformers cannot read it"):
        convert(tiny)


def test_damaged_tokenizer(tiny: Path) -> None:
    (tiny / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not a tokenizer"):
        convert(tiny)

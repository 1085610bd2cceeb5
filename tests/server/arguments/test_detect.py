"""GPT or vision-language model, from the checkpoint's args alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.arguments.detect import detect_model_kind


@pytest.mark.parametrize("value", ["llama3_8b", "mistral_7b", "qwen2.5_7B", "yi-34b", "nemotron5-8b"])
def test_a_real_language_model_type(value: str) -> None:
    kind = detect_model_kind({"language_model_type": value, "vision_model_type": "clip"})
    assert kind.kind == "vlm"
    assert value in kind.reasons[0]
    assert "clip" in kind.reasons[1]


@pytest.mark.parametrize(
    "value", [None, "", " ", "none", "None", "null", "dummy", "PLACEHOLDER", "<unset>", False, 0, 3]
)
def test_a_placeholder_is_not(value: Any) -> None:
    kind = detect_model_kind({"language_model_type": value, "vision_model_type": "clip"})
    assert kind.kind == "gpt"
    assert "language_model_type" in kind.reasons[0]


def test_no_language_model_type() -> None:
    assert detect_model_kind({"vision_model_type": "clip"}).kind == "gpt"


def test_encoder_defaults_come_after_the_checkpoint(plant: Callable[..., Path], resolve: Any) -> None:
    load = plant(language_model_type="llama3_8b", vision_model_type="radio", patch_dim=14)
    resolved = resolve(load, "--class-token-len", "10")
    assert resolved.document["kind"] == "vlm"
    assert resolved.value_and_source("patch_dim") == (14, "checkpoint")
    assert resolved.value_and_source("class_token_len") == (10, "command_line")
    assert resolved["pixel_mean"]["source"] == "model"
    assert resolved["pixel_mean"]["value"][0] == pytest.approx(0.48145466)
    assert resolve(load).value_and_source("class_token_len") == (8, "model")


def test_saved_image_arguments_are_taken(plant: Callable[..., Path], resolve: Any) -> None:
    saved = {"img_h": 336, "special_tokens": ["<image>", "<x>"], "pixel_shuffle": True, "max_num_tiles": 12}
    resolved = resolve(plant(language_model_type="llama3_8b", **saved))
    for name, value in saved.items():
        assert resolved.value_and_source(name) == (value, "checkpoint")


def test_the_kind_of_a_checkpoint_is_not_for_the_command_line_to_say(plant: Callable[..., Path], resolve: Any) -> None:
    resolved = resolve(plant(), "--language-model-type", "llama3_8b")
    assert resolved.document["kind"] == "gpt"
    assert "does not apply" in resolved["language_model_type"]["note"]


def test_a_checkpoint_without_args_is_described_by_typed_ones(plant_without_args: Path, resolve: Any) -> None:
    sizes = {"num-layers": 2, "hidden-size": 48, "num-attention-heads": 6, "max-position-embeddings": 64}
    resolved = resolve(plant_without_args, *(f"--{k}={v}" for k, v in sizes.items()), "--padded-vocab-size=128")
    assert (resolved.status, resolved.document["kind"]) == (0, "gpt")
    assert "holds no args" in resolved.document["reasons"][0]
    partly = resolve(plant_without_args, "--num-layers", "2", "--language-model-type", "llama3_8b")
    assert partly.document["kind"] == "vlm"
    assert {c["args"][0] for c in partly.document["conflicts"]} >= {"hidden_size", "num_attention_heads"}

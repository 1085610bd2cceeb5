"""Megatron's names over this resolution: what was detected, where values came from, and what is built."""

from __future__ import annotations

import argparse
import io
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from model_providers.checkpoint.import_command import import_hf
from model_providers.checkpoint.single_process import process_group_of_one
from model_providers.llava import ServingLLaVAModel
from model_providers.parallel import initialize_tensor_parallel
from server.arguments.parser import ServeParser
from server.errors import ConfigurationError
from server.vlm_dynamic_inference import (
    ImageSettings,
    _detect_vlm_from_checkpoint,
    _print_resolved_args,
    add_vlm_inference_args,
    get_model,
)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llava")
    text = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, vocab_size=60,
        max_position_embeddings=64,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, image_size=28, patch_size=14
    )
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=59))
    model.save_pretrained(directory / "hf")
    import_hf(directory / "hf", directory / "megatron")
    return directory / "megatron"


def arguments(load: Path, **typed: Any) -> Namespace:
    return Namespace(**dict(ServeParser().defaults) | {"load": str(load)} | typed)


def test_a_llava_is_detected_resolved_and_built(llava: Path) -> None:
    args = arguments(llava, rotary_base=123)
    assert _detect_vlm_from_checkpoint(args) is True
    assert (args.vision_model_type, args.patch_dim, args.num_layers, args.rotary_base) == ("clip", 14, 1, 123)
    resolution = args._vlm_arg_resolution
    assert resolution["rotary_base"]["source"] == "command_line"
    assert resolution["patch_dim"]["source"] == "checkpoint"
    assert resolution["dtype"]["source"] == "derived"
    assert ImageSettings.from_values(vars(args)).patch_dim == 14
    with process_group_of_one():
        initialize_tensor_parallel(1, timeout_seconds=60)
        assert isinstance(get_model(True, args), ServingLLaVAModel)
        with pytest.raises(ConfigurationError, match="holds a vlm"):
            get_model(False, args)


def test_only_what_was_passed_counts_as_typed(llava: Path) -> None:
    args = arguments(llava, rotary_base=123, patch_dim=7)
    _detect_vlm_from_checkpoint(args, user_passed_attrs=["rotary_base"])
    assert (args.rotary_base, args.patch_dim) == (123, 14)


def test_a_gpt_is_none(padded_checkpoint: Path) -> None:
    args = arguments(padded_checkpoint)
    assert _detect_vlm_from_checkpoint(args) is False
    out = io.StringIO()
    _print_resolved_args("what is served", args, out)
    assert "  num_layers ...................................... 3  (checkpoint)" in out.getvalue()


def test_nothing_is_built_before_detection() -> None:
    with pytest.raises(ConfigurationError, match="_detect_vlm_from_checkpoint"):
        get_model(True, Namespace())


def test_every_boolean_has_both_forms() -> None:
    parser = argparse.ArgumentParser()
    add_vlm_inference_args(parser)
    assert parser.parse_args(["--use-tiling"]).use_tiling is True
    assert parser.parse_args(["--use-tiling", "--no-use-tiling"]).use_tiling is False

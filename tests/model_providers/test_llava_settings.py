"""Encoder and projection follow from names where no argument says otherwise; refusals name the argument."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest

from model_providers.errors import UnsupportedModelError
from model_providers.llava import construct
from model_providers.vision.projection_settings import projection_settings
from model_providers.vision.settings import encoder_settings
from model_providers.vision.supported import vision_settings
from model_providers.vlm_arguments import ARCHITECTURE_ARGUMENTS, VLM_ARGUMENTS

_DROP = "--disable-vision-class-token"
_OPEN = dict.fromkeys(argument.name for argument in ARCHITECTURE_ARGUMENTS)
# Layers, hidden size, heads, head size, MLP: the sizes that Megatron-LM's examples/multimodal/config.py sets.
_SIZES = {
    "clip": (24, 1024, 16, 64, 4096),
    "siglip": (27, 1152, 16, 72, 4304),
    "internvit": (45, 3200, 25, 128, 12800),
    "internvit300M": (24, 1024, 16, 64, 4096),
    "radio": (32, 1280, 16, 80, 5120),
    "radio-g": (40, 1536, 24, 64, 4096),
    "cradio-g": (40, 1536, 24, 64, 6144),
}


@pytest.mark.parametrize("encoder", _SIZES)
def test_encoders_by_name(
    encoder: str, llava_args: Callable[..., Namespace], model_config: Callable[..., Any], one_process: None
) -> None:
    values = {**vars(llava_args(encoder)), **_OPEN, "language_model_type": "llama3.1_8b"}
    settings = encoder_settings(values)
    sizes = (settings.num_layers, settings.hidden_size, settings.num_attention_heads, settings.kv_channels)
    assert (*sizes, settings.ffn_hidden_size) == _SIZES[encoder]
    # On the meta device, where even the largest takes no memory.
    model = construct(model_config(Namespace(**values), values=values))
    layers, hidden, heads, head_dim, ffn = _SIZES[encoder]
    shapes = {name: tuple(parameter.shape) for name, parameter in model.vision_model.named_parameters()}
    last = f"decoder.layers.{layers - 1}."
    assert f"decoder.layers.{layers}.mlp.linear_fc1.weight" not in shapes
    assert shapes[f"{last}self_attention.linear_qkv.weight"] == (3 * heads * head_dim, hidden)
    assert shapes[f"{last}mlp.linear_fc2.weight"] == (hidden, ffn)
    assert shapes[f"{last}mlp.linear_fc1.weight"] == (2 * ffn if encoder == "radio-g" else ffn, hidden)
    assert (f"{last}ls1" in shapes) is (encoder in ("internvit", "internvit300M", "radio-g"))
    assert (f"{last}self_attention.q_layernorm.weight" in shapes) is (encoder == "internvit")
    assert (f"{last}self_attention.linear_qkv.bias" in shapes) is (encoder != "internvit")
    assert ("ln_post.weight" in shapes) is (encoder in ("siglip", "radio-g"))
    assert ("ln_pre.weight" in shapes) is (encoder == "clip")


# Width, activation, biases, norm of the projection.
_PROJECTIONS = {
    "llama3_8b": (14336, "gelu", False, "RMSNorm"),  # the language model's own norm
    "llama3.1_8b": (4096, "gelu", True, "LayerNorm"),
    "llama3.2_1b": (2048, "gelu", False, "LayerNorm"),
    "mistral_7b": (14336, "gelu", False, None),
    "yi-34b": (20480, "gelu", False, "LayerNorm"),
    "qwen2.0_72B": (29568, "gelu", False, "LayerNorm"),
    "qwen2.5_7B": (3584, "gelu", True, "LayerNorm"),
    "qwen2.5_72B": (29568, "gelu", False, "LayerNorm"),
    "nemotron5-8b": (21504, "squared_relu", False, "RMSNorm"),
}


@pytest.mark.parametrize("language_model_type", _PROJECTIONS)
def test_projections_by_name_of_the_language_model(
    language_model_type: str, llava_args: Callable[..., Namespace]
) -> None:
    values = {**vars(llava_args("clip")), **_OPEN, "language_model_type": language_model_type}
    found = projection_settings(values)
    expected = _PROJECTIONS[language_model_type]
    assert (found.ffn_hidden_size, found.activation, found.add_bias, found.normalization) == expected
    said = {
        "vision_projection_ffn_hidden_size": 7, "vision_projection_activation": "silu",
        "vision_projection_bias": not expected[2], "vision_projection_normalization": "none",
    }  # fmt: skip
    found = projection_settings({**values, **said})
    assert (found.ffn_hidden_size, found.activation, found.add_bias, found.normalization) == (
        7,
        "silu",
        not expected[2],
        None,
    )


_REFUSED: list[tuple[str, list[str], dict[str, Any], str]] = [
    ("clip", [], {"vision_model_type": "vit-huge"}, "vision_model_type"),
    ("clip", [], {"vision_model_type": "hf://openai/clip"}, "vision_model_type"),
    ("clip", [], {"language_model_type": "hf://meta/llama"}, "language_model_type"),
    ("clip", [], {"vision_projection_type": "perceiver"}, "vision_projection_type"),
    ("clip", [], {"vision_projection_ffn_hidden_size": None}, "vision_projection_ffn_hidden_size"),
    ("clip", [], {"vision_projection_activation": "tanh"}, "vision_projection_activation"),
    ("clip", [], {"vision_projection_normalization": "BatchNorm"}, "vision_projection_normalization"),
    ("clip", [], {"vision_activation": "tanh"}, "vision_activation"),
    ("clip", [], {"vision_final_layernorm": True}, "vision_final_layernorm"),
    ("clip", [], {"position_embedding_type": "learned_absolute"}, "position_embedding_type"),
    ("clip", [], {"class_token_len": 2}, "class_token_len"),
    ("clip", [], {"img_h": 57}, "img_h"),
    ("clip", ["--pixel-shuffle"], {}, "pixel_shuffle"),
    ("clip", ["--pixel-shuffle", _DROP], {"img_w": 112}, "pixel_shuffle"),
    ("clip", ["--pixel-shuffle", _DROP], {"img_h": 42, "img_w": 42}, "img_h"),
    ("clip", ["--conv-merging", _DROP], {}, "conv_merging"),
    ("clip", ["--dynamic-resolution"], {}, "dynamic_resolution"),
    ("siglip", ["--use-tile-tags", "--tokenizer-prompt-format=mistral"], {}, "tokenizer_prompt_format"),
]


@pytest.mark.parametrize(("encoder", "flags", "changed", "argument"), _REFUSED)
def test_refusals_name_the_argument(
    encoder: str,
    flags: list[str],
    changed: dict[str, Any],
    argument: str,
    llava_args: Callable[..., Namespace],
    model_config: Callable[..., Any],
    one_process: None,
) -> None:
    args = llava_args(encoder, *flags)
    values = {**vars(args), **changed}
    with pytest.raises(UnsupportedModelError) as refused:
        construct(model_config(args, values=values))
    assert refused.value.argument == argument
    assert str(refused.value).startswith(f"{argument}: ")


def test_heads_that_ranks_cannot_share_are_refused_before_anything_is_built(
    llava_args: Callable[..., Namespace], model_config: Callable[..., Any], one_process: None
) -> None:
    args = llava_args("clip", "--vision-num-attention-heads=3", "--vision-kv-channels=8")
    with pytest.raises(UnsupportedModelError) as refused:
        construct(model_config(args, tensor_model_parallel_size=2))
    assert refused.value.argument == "tensor_model_parallel_size"
    trained = {**vars(llava_args("internvit", "--vision-ffn-hidden-size=48")), "vision_num_attention_heads": None}
    assert vision_settings(trained, 2).encoder.num_attention_heads == 25  # its own; a checkpoint may have added one


def test_training_arguments_hold_every_argument_of_a_vision_language_model(
    llava_args: Callable[..., Namespace],
) -> None:
    values = vars(llava_args("clip"))
    assert {argument.name for argument in VLM_ARGUMENTS} <= values.keys()
    assert values["special_tokens"] == ["<image>"]
    assert (values["vision_final_layernorm"], values["pixel_shuffle"], values["max_num_tiles"]) == (None, False, 1)

"""Vision-language models, imported and served, give the logits of Hugging Face's implementation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    InternVLConfig,
    InternVLVisionConfig,
    LlamaConfig,
    LlavaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SiglipVisionConfig,
)

from model_providers import get_model
from model_providers.checkpoint.hf.convert import convert
from model_providers.checkpoint.hf.registry import family_of
from model_providers.checkpoint.import_command import import_hf
from model_providers.checkpoint.peek import peek
from model_providers.errors import CheckpointError, UnsupportedModelError

IMAGE = 98
_TEXT = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 99, "max_position_embeddings": 128,
}  # fmt: skip
_TOWER: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
_INTERNVIT = InternVLVisionConfig(**_TOWER, attention_bias=True)
_INTERNVIT_LARGE = InternVLVisionConfig(**_TOWER, use_qk_norm=True, norm_type="rms_norm", layer_norm_eps=1e-5)


def _llava(vision: Any, text: Any, **options: Any) -> LlavaConfig:
    return LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, **options)


def _internvl(vision: Any, **options: Any) -> InternVLConfig:
    return InternVLConfig(vision_config=vision, text_config=Qwen2Config(**_TEXT), image_token_id=IMAGE, **options)


_MODELS: dict[str, PreTrainedConfig] = {
    "clip, llama": _llava(CLIPVisionConfig(**_TOWER), LlamaConfig(**_TEXT)),
    "clip, qwen2 tied": _llava(CLIPVisionConfig(**_TOWER), Qwen2Config(**_TEXT, tie_word_embeddings=True)),
    "clip whole with class token, mistral": _llava(
        CLIPVisionConfig(**_TOWER, hidden_act="gelu", layer_norm_eps=3e-4),
        MistralConfig(**_TEXT, sliding_window=None),
        vision_feature_layer=-1, vision_feature_select_strategy="full", multimodal_projector_bias=False,
    ),
    "siglip, qwen3": _llava(
        SiglipVisionConfig(**_TOWER), Qwen3Config(**_TEXT), vision_feature_select_strategy="full",
        projector_hidden_act="gelu_pytorch_tanh",
    ),
    "siglip by positive index, llama": _llava(
        SiglipVisionConfig(**_TOWER, vision_use_head=False), LlamaConfig(**_TEXT), vision_feature_layer=1,
        vision_feature_select_strategy="full",
    ),
    "internvl 300M": _internvl(_INTERNVIT, tie_word_embeddings=False),
    "internvl 6B": _internvl(_INTERNVIT_LARGE, vision_feature_layer=-2),
}  # fmt: skip


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[[Any], Any]:
    """`write_model(config)` saves a random model, of which every parameter is random, at tmp_path/"hf"."""

    def write(config: Any) -> Any:
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn_like(parameter) * 0.2
                parameter.copy_(1 + noise if "norm" in name and name.endswith("weight") else noise)
        model.save_pretrained(tmp_path / "hf")
        return model

    return write


@pytest.fixture
def serve(one_process: None, model_config: Callable[..., Any]) -> Callable[[Path], Any]:
    """`serve(checkpoint)`: the model, by what the checkpoint says about itself alone."""

    def build(checkpoint: Path) -> Any:
        found = peek(checkpoint)
        args = type("Args", (), dict(found.args))
        config = model_config(args, values=found.args, checkpoint=found.path, checkpoint_format=found.format)
        return get_model(True, config)

    return build


def _prompt(num_images: int, tokens_per_image: int) -> Tensor:
    generator = torch.Generator().manual_seed(num_images)
    words = torch.randint(0, IMAGE, (num_images + 1, 6), generator=generator)
    parts = [words[0]]
    for following in words[1:]:
        parts += [torch.full((tokens_per_image,), IMAGE), following]
    return torch.cat(parts)


@pytest.mark.parametrize("config", _MODELS.values(), ids=_MODELS.keys())
def test_logits_equal_hugging_face(
    config: Any,
    write_model: Callable[[Any], Any],
    serve: Callable[[Path], Any],
    packed_logits: Callable[..., Tensor],
    tmp_path: Path,
) -> None:
    model = write_model(config)
    import_hf(tmp_path / "hf", tmp_path / "megatron")
    served = serve(tmp_path / "megatron")
    pixels = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(5))
    for num_images in (0, 1, 2):
        shown = pixels[:num_images]
        embeddings = served.encode_images([image[None] for image in shown])
        prompt = _prompt(num_images, len(embeddings[0]) if embeddings else 0)
        with torch.no_grad():
            expected = model(input_ids=prompt[None], pixel_values=shown if num_images else None).logits[0]
        rows = (prompt == IMAGE).nonzero()[:, 0] if num_images else None
        actual = packed_logits(served, prompt, rows, torch.cat(embeddings) if embeddings else None)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
        assert expected.std() > 0.5  # or the tolerance would say little


def test_arguments_describe_the_model(write_model: Callable[[Any], Any], tmp_path: Path) -> None:
    write_model(_MODELS["clip, llama"])
    (tmp_path / "hf" / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "do_center_crop": True, "crop_size": {"height": 28, "width": 28}, "size": {"shortest_edge": 28},
                "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5], "resample": 2, "do_pad": False,
            }
        )
    )  # fmt: skip
    args = vars(convert(tmp_path / "hf").args)
    expected = {
        "language_model_type": "llama", "vision_model_type": "clip", "vision_projection_type": "mlp",
        "disable_vision_class_token": True, "pixel_shuffle": False, "use_tiling": False, "max_num_tiles": 1,
        "img_h": 28, "img_w": 28, "patch_dim": 7, "decoder_seq_length": 128, "special_tokens": ["<image>"],
        "vision_num_layers": 2, "vision_hidden_size": 32, "vision_num_attention_heads": 4,
        "vision_ffn_hidden_size": 40, "vision_activation": "quick_gelu", "vision_projection_ffn_hidden_size": 48,
        "vision_projection_activation": "gelu", "vision_projection_bias": True,
        "vision_projection_normalization": "none", "image_resize_mode": "center_crop", "image_resample": "bilinear",
        "pixel_mean": [0.1, 0.2, 0.3], "num_layers": 2, "hidden_size": 48, "padded_vocab_size": 99,
    }  # fmt: skip
    assert {name: args[name] for name in expected} == expected


@pytest.mark.parametrize("older_tower_name", [False, True])
def test_names_of_other_versions_of_transformers(
    older_tower_name: bool, write_model: Callable[[Any], Any], tmp_path: Path
) -> None:
    write_model(_MODELS["clip, llama"])
    expected = convert(tmp_path / "hf").state_dict
    path = tmp_path / "hf" / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(path).items():
        if older_tower_name:
            renamed[name.replace("vision_tower.", "vision_tower.vision_model.")] = tensor
        elif name.startswith("language_model."):
            new = name.removeprefix("language_model.").replace("model.", "model.language_model.", 1)
            renamed[new] = tensor
        else:
            renamed[f"model.{name}"] = tensor
    save_file(renamed, path, metadata={"format": "pt"})
    actual = convert(tmp_path / "hf").state_dict
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_a_superfluous_tensor_of_the_tower_is_named(write_model: Callable[[Any], Any], tmp_path: Path) -> None:
    write_model(_MODELS["clip, llama"])
    path = tmp_path / "hf" / "model.safetensors"
    extra = {"vision_tower.encoder.layers.0.mlp.fc3.weight": torch.zeros(2)}
    save_file({**load_file(path), **extra}, path, metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"does not have: \['vision_tower\.encoder\.layers\.0\.mlp\.fc3\.weight'\]"
    ):
        convert(tmp_path / "hf")


_CLIP, _LLAMA = CLIPVisionConfig(**_TOWER), LlamaConfig(**_TEXT)
_UNSUPPORTED: list[tuple[PreTrainedConfig, str]] = [
    (_llava(_CLIP, _LLAMA, vision_feature_layer=[-2, -1]), "vision_feature_layer"),
    (_llava(_CLIP, _LLAMA, vision_feature_layer=0), "vision_feature_layer"),
    (_llava(_CLIP, _LLAMA, projector_hidden_act="tanh"), "projector_hidden_act"),
    (_llava(CLIPVisionConfig(**_TOWER, hidden_act="tanh"), _LLAMA), "hidden_act"),
    (_llava(CLIPVisionConfig(**_TOWER, num_channels=1), _LLAMA), "num_channels"),
    (_llava(SiglipVisionConfig(**_TOWER), _LLAMA), "vision_feature_select_strategy"),  # it would drop a patch
    (_llava(_INTERNVIT, _LLAMA), "vision_config.model_type"),
    (_llava(_CLIP, LlamaConfig(**_TEXT, attention_bias=True)), "attention_bias"),
    (_internvl(_INTERNVIT, downsample_ratio=0.25), "downsample_ratio"),
    (_internvl(InternVLVisionConfig(**_TOWER, use_mean_pooling=False, attention_bias=True)), "use_mean_pooling"),
    (_internvl(InternVLVisionConfig(**_TOWER)), "attention_bias"),
]


@pytest.mark.parametrize(("config", "option"), _UNSUPPORTED)
def test_unsupported_options_are_named(config: Any, option: str) -> None:
    with pytest.raises(UnsupportedModelError, match=option):
        family_of(config).megatron_flags(config)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"do_pad": True}, "do_pad"),
        ({"do_normalize": False}, "do_normalize"),
        ({"size": {"shortest_edge": 32}}, "size"),
        ({"crop_size": 32}, "crop_size"),
        ({"resample": 0}, "resample"),
    ],
)
def test_unsupported_image_processors_are_named(
    options: dict[str, Any], named: str, write_model: Callable[[Any], Any], tmp_path: Path
) -> None:
    write_model(_MODELS["clip, llama"])
    (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps(options))
    with pytest.raises(UnsupportedModelError, match=f"^{named}: "):
        convert(tmp_path / "hf")

"""Arguments of vision-language models: those that Megatron's multimodal training saves, by the names it uses there.

Torch-free. Defaults are those of Megatron's examples/multimodal.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

from server.arguments.option_groups import OptionGroup


@dataclass(frozen=True)
class VlmFlag:
    """One argument. A boolean default makes it a boolean with a --no- form."""

    name: str
    default: Any
    help: str
    options: dict[str, Any] = field(default_factory=dict)


def _boolean(name: str, help: str) -> VlmFlag:
    return VlmFlag(name, False, help)


def _integer(name: str, default: int | None, help: str) -> VlmFlag:
    return VlmFlag(name, default, help, {"type": int})


def _text(name: str, default: str | None, help: str) -> VlmFlag:
    return VlmFlag(name, default, help, {"type": str})


VLM_FLAGS: tuple[VlmFlag, ...] = (
    _text("language_model_type", None, "Language model of a vision-language model; set, it makes the checkpoint one."),
    _text(
        "vision_model_type", "clip", "Image encoder: clip, siglip, internvit, internvit300M, radio, radio-g, cradio-g."
    ),
    _text("vision_projection_type", "mlp", "Projection from the encoder to the language model."),
    _boolean("use_te", "Trained with Transformer Engine layers."),
    _boolean("disable_vision_class_token", "Drop the encoder's class tokens."),
    _integer("class_token_len", None, "Class tokens of the encoder. Default: by encoder."),
    _boolean("pixel_shuffle", "Merge 2 by 2 image tokens into one."),
    _boolean("conv_merging", "Merge image tokens by a convolution."),
    _integer("spatial_merge_size", None, "Image tokens merged into one, along each side."),
    _boolean("use_tiling", "Cut large images into tiles."),
    _integer("max_num_tiles", 1, "Most tiles per image."),
    _boolean("use_thumbnail", "Add the whole image as one more tile."),
    VlmFlag(
        "thumbnail_area_threshold",
        None,
        "Leave the thumbnail out when the tiles cover more than this share of its area.",
        {"type": float},
    ),
    _boolean("use_tile_tags", "Put a text tag before each tile."),
    _boolean("use_area_weighted_aspect_ratio", "Choose the tile grid by covered area as well as aspect ratio."),
    _boolean("dynamic_resolution", "Encode images in their own aspect ratio instead of tiles."),
    _integer("dynamic_resolution_min_patches", 0, "Fewest patches per image."),
    _integer("dynamic_resolution_max_patches", 0, "Most patches per image; 0 sets no limit."),
    _integer("dynamic_resolution_min_side", None, "Shortest side of an image in pixels."),
    VlmFlag(
        "pixel_mean",
        None,
        "Channel means of normalisation, 0 to 255. Default: by encoder.",
        {"type": float, "nargs": 3},
    ),
    VlmFlag(
        "pixel_std",
        None,
        "Channel standard deviations of normalisation, 0 to 255. Default: by encoder.",
        {"type": float, "nargs": 3},
    ),
    VlmFlag("special_tokens", ["<image>"], "Tokens added to the tokenizer.", {"type": str, "nargs": "*"}),
    VlmFlag("image_tag_type", "", "Tags around image tokens.", {"choices": ["", "nvlm", "internvl"]}),
    _text("image_break_token", None, "Token between rows of image tokens; must be among --special-tokens."),
    _text("tokenizer_prompt_format", None, "Prompt format of training, such as chatml, mistral or llama3."),
    _boolean("force_system_message", "Always begin with the prompt format's system message."),
    _integer("eos_id", None, "Token that ends a reply. Default: the tokenizer's."),
    _integer("num_frames", 1, "Frames per video."),
    _boolean("recompute_vision", "Training only: recompute the encoder's activations."),
    _boolean("freeze_LM", "Training only: keep the language model's weights."),
    _boolean("freeze_ViT", "Training only: keep the encoder's weights."),
    _boolean("allow_missing_vision_projection_checkpoint", "Training only: start without projection weights."),
    _boolean("radio_force_eval_mode", "RADIO: evaluation mode also in training."),
    _boolean("radio_force_cpe_eval_mode", "RADIO: evaluation mode of position embeddings also in training."),
    _boolean("radio_interpolate_only_cpe", "RADIO: interpolate position embeddings without cropping."),
    _boolean("radio_cpe_aspect_ratio_select", "RADIO: choose position embeddings by aspect ratio."),
    _boolean("radio_disable_cpe", "RADIO: no cropped position embeddings."),
)


def add_vlm_inference_args(parser: argparse.ArgumentParser) -> None:
    """Add them in a group. Megatron's `--img-h`, `--img-w`, `--patch-dim` and `--decoder-seq-length` belong to it."""
    group = OptionGroup(parser, "vision-language models")
    for flag in VLM_FLAGS:
        group.add(flag.name, flag.default, flag.help, **flag.options)

"""Arguments of vision-language models: Megatron's multimodal training's, by its names, and ours for what it leaves out.

Megatron-LM's examples/multimodal/multimodal_args.py declares most of the first; newer sources the rest. A checkpoint
stores the names of encoder and language model, and what these imply stays in the training script: the `vision_*`
arguments at the end say it, so that a model of other sizes can be described. Torch-free.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class VlmArgument:
    """One argument. A boolean default makes it a boolean with a --no- form. options: for add_argument."""

    name: str
    default: Any
    help: str
    options: dict[str, Any] = field(default_factory=dict)


def _boolean(name: str, help: str) -> VlmArgument:
    return VlmArgument(name, False, help)


def _integer(name: str, default: int | None, help: str) -> VlmArgument:
    return VlmArgument(name, default, help, {"type": int})


def _number(name: str, help: str, **options: Any) -> VlmArgument:
    return VlmArgument(name, None, help, {"type": float, **options})


def _text(name: str, default: str | None, help: str) -> VlmArgument:
    return VlmArgument(name, default, help, {"type": str})


def _choice(name: str, choices: list[str], help: str) -> VlmArgument:
    return VlmArgument(name, None, help, {"choices": choices})


def _open_boolean(name: str, help: str) -> VlmArgument:
    """None until somebody says yes or no."""
    return VlmArgument(name, None, help, {"action": argparse.BooleanOptionalAction})


_ACTIVATIONS = ["quick_gelu", "fast_gelu", "gelu", "squared_relu", "silu", "swiglu"]

TRAINING_ARGUMENTS: tuple[VlmArgument, ...] = (
    _text("language_model_type", None, "Language model of a vision-language model; set, it makes the checkpoint one."),
    _text(
        "vision_model_type", "clip", "Image encoder: clip, siglip, internvit, internvit300M, radio, radio-g, cradio-g."
    ),
    _text("vision_projection_type", "mlp", "Projection from the encoder to the language model: mlp or affine."),
    _boolean("use_te", "Trained with Transformer Engine layers."),
    _boolean("disable_vision_class_token", "Drop the encoder's class tokens."),
    _integer("class_token_len", None, "Class tokens of the encoder. Default: by encoder."),
    _boolean("pixel_shuffle", "Merge 2 by 2 image tokens into one."),
    _boolean("conv_merging", "Merge image tokens by a convolution."),
    _integer("spatial_merge_size", None, "Image tokens merged into one, along each side."),
    _boolean("use_tiling", "Cut large images into tiles."),
    _integer("max_num_tiles", 1, "Most tiles per image."),
    _boolean("use_thumbnail", "Add the whole image as one more tile."),
    _number(
        "thumbnail_area_threshold", "Leave the thumbnail out when the tiles cover more than this share of its area."
    ),
    _boolean("use_tile_tags", "Put a text tag before each tile."),
    _boolean("use_area_weighted_aspect_ratio", "Choose the tile grid by covered area as well as aspect ratio."),
    _boolean("dynamic_resolution", "Encode images in their own aspect ratio instead of tiles."),
    _integer("dynamic_resolution_min_patches", 0, "Fewest patches per image."),
    _integer("dynamic_resolution_max_patches", 0, "Most patches per image; 0 sets no limit."),
    _integer("dynamic_resolution_min_side", None, "Shortest side of an image in pixels."),
    _number("pixel_mean", "Channel means of normalisation, 0 to 255. Default: by encoder.", nargs=3),
    _number("pixel_std", "Channel standard deviations of normalisation, 0 to 255. Default: by encoder.", nargs=3),
    VlmArgument("special_tokens", ["<image>"], "Tokens added to the tokenizer.", {"type": str, "nargs": "*"}),
    VlmArgument("image_tag_type", "", "Tags around image tokens.", {"choices": ["", "nvlm", "internvl"]}),
    _text("image_break_token", None, "Token between rows of image tokens; must be among --special-tokens."),
    _text("tokenizer_prompt_format", None, "Prompt format of training, such as chatml, mistral or llama3."),
    _boolean("force_system_message", "Always begin with the prompt format's system message."),
    _integer("eos_id", None, "Token that ends a reply. Default: the tokenizer's."),
    _integer("num_frames", 1, "Frames per video."),
    _boolean("recompute_vision", "Training only: recompute the encoder's activations."),
    _boolean("freeze_LM", "Training only: keep the language model's weights."),
    _boolean("freeze_ViT", "Training only: keep the encoder's weights."),
    _boolean("allow_missing_vision_projection_checkpoint", "Load a checkpoint without projection weights, as zeros."),
    _boolean("radio_force_eval_mode", "RADIO: evaluation mode also in training."),
    _boolean("radio_force_cpe_eval_mode", "RADIO: evaluation mode of position embeddings also in training."),
    _boolean("radio_interpolate_only_cpe", "RADIO: interpolate position embeddings without cropping."),
    _boolean("radio_cpe_aspect_ratio_select", "RADIO: choose position embeddings by aspect ratio."),
    _boolean("radio_disable_cpe", "RADIO: no cropped position embeddings."),
)

# None: what vision_model_type or language_model_type implies.
ARCHITECTURE_ARGUMENTS: tuple[VlmArgument, ...] = (
    _integer("vision_num_layers", None, "Layers of the image encoder."),
    _integer("vision_hidden_size", None, "Width of the image encoder."),
    _integer("vision_num_attention_heads", None, "Attention heads of the image encoder."),
    _integer("vision_kv_channels", None, "Width of one head of the image encoder. Default: width / heads."),
    _integer("vision_ffn_hidden_size", None, "Width of the image encoder's MLPs."),
    _choice("vision_activation", _ACTIVATIONS, "Nonlinearity of the image encoder's MLPs."),
    _number("vision_layernorm_epsilon", "Epsilon of the image encoder's norms."),
    _open_boolean("vision_final_layernorm", "The norm after the last layer that siglip and radio-g have."),
    _integer("vision_projection_ffn_hidden_size", None, "Width between the projection's two linear layers."),
    _choice("vision_projection_activation", _ACTIVATIONS, "Nonlinearity between the projection's two linear layers."),
    _open_boolean("vision_projection_bias", "Biases in the projection's linear layers."),
    _choice("vision_projection_normalization", ["none", "LayerNorm", "RMSNorm"], "Norm before the projection."),
    _number("vision_projection_layernorm_epsilon", "Epsilon of that norm. Default: the language model's."),
)

# None: `image_preprocessing.settings.ImageSettings` says what is usual.
PREPROCESSING_ARGUMENTS: tuple[VlmArgument, ...] = (
    _choice("image_resize_mode", ["stretch", "center_crop"], "How an image gets to a tile's size. Default: stretch."),
    _choice("image_resample", ["bicubic", "bilinear", "lanczos"], "Filter of resizing. Default: bicubic."),
    _text("image_background", None, "Colour behind transparent pixels, as #rrggbb. Default: white."),
    _integer("tile_tag_len", None, "Tokens of a tile tag. Default: by prompt format."),
)

VLM_ARGUMENTS = TRAINING_ARGUMENTS + ARCHITECTURE_ARGUMENTS + PREPROCESSING_ARGUMENTS


def add_vlm_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them to Megatron's parser; what that has already (`special_tokens`) keeps its flags and gets our default."""
    present = {action.dest for action in parser._actions}
    group = parser.add_argument_group("vision-language models")
    for argument in VLM_ARGUMENTS:
        if argument.name in present:
            parser.set_defaults(**{argument.name: argument.default})
        else:
            options = dict(argument.options)
            if isinstance(argument.default, bool):
                options["action"] = argparse.BooleanOptionalAction
            flag = "--" + argument.name.replace("_", "-")
            group.add_argument(flag, dest=argument.name, default=argument.default, help=argument.help, **options)

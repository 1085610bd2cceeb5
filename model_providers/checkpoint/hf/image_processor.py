"""A Hugging Face image processor's options as ours: size, crop, filter, statistics and tiles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_providers.errors import CheckpointError, UnsupportedModelError

_FILES = ("preprocessor_config.json", "processor_config.json")
_RESAMPLE = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # PIL's numbers
_REQUIRED = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_pad": False}


def image_processor_flags(directory: Path, config: Any) -> list[str]:
    """Flags for the processor beside the weights; without one, for the usual one of the tower's kind.

    Raises UnsupportedModelError naming an option that image_preprocessing lacks, CheckpointError for a damaged file.
    """
    options = _options(directory)
    for name, wanted in _REQUIRED.items():
        if options.get(name, wanted) not in (wanted, None):
            raise UnsupportedModelError(name, f"{options[name]!r} in the image processor's file is not supported")
    side = config.vision_config.image_size
    side = side if isinstance(side, int) else side[0]
    flags = ["--image-resize-mode", _resize_mode(options, side, config.vision_config.model_type)]
    flags += ["--image-resample", _resample(options)]
    for name, flag in (("image_mean", "--pixel-mean"), ("image_std", "--pixel-std")):
        if name in options:
            flags += [flag, *(str(float(value)) for value in options[name])]
    if options.get("crop_to_patches"):
        flags += ["--use-tiling", "--use-thumbnail", "--max-num-tiles", str(int(options.get("max_patches", 12)))]
    return flags


def _options(directory: Path) -> Mapping[str, Any]:
    for name in _FILES:
        path = directory / name
        if not path.is_file():
            continue
        try:
            options = json.loads(path.read_text())
        except ValueError as error:
            raise CheckpointError(path, f"is not JSON: {error}") from error
        options = options.get("image_processor", options) if isinstance(options, dict) else None
        if not isinstance(options, dict):
            raise CheckpointError(path, "does not hold an image processor's options")
        if "image_mean" in options or "size" in options or name == _FILES[0]:
            return options
    return {}


def _resize_mode(options: Mapping[str, Any], side: int, tower: str) -> str:
    """`center_crop` or `stretch`; the size must be the tower's, for which its positions are."""
    crops = options.get("do_center_crop", tower == "clip_vision_model")
    square = {"height": side, "width": side}
    size, crop = options.get("size"), options.get("crop_size")
    wanted = {"shortest_edge": side} if crops else square
    if isinstance(size, int):
        size = {"shortest_edge": size} if crops else {"height": size, "width": size}
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    if size not in (None, wanted):
        raise UnsupportedModelError("size", f"{size} in the image processor's file is not {wanted}, the tower's")
    if crops and crop not in (None, square):
        raise UnsupportedModelError("crop_size", f"{crop} in the image processor's file is not {square}, the tower's")
    return "center_crop" if crops else "stretch"


def _resample(options: Mapping[str, Any]) -> str:
    number = options.get("resample", 3)
    if number not in _RESAMPLE:
        raise UnsupportedModelError("resample", f"{number!r} in the image processor's file is not one of {_RESAMPLE}")
    return _RESAMPLE[number]

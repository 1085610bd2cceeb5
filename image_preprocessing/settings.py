"""How a model wants its images: the resolved arguments that concern them, checked once and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any, Literal, Self

from image_preprocessing.argument_values import ArgumentValues
from image_preprocessing.colour import Rgb
from image_preprocessing.encoders import Triple, find_encoder
from image_preprocessing.settings_checks import check_settings
from image_preprocessing.tile_tags import tile_tag_length

ResizeMode = Literal["stretch", "center_crop"]
Resample = Literal["bicubic", "bilinear", "lanczos"]

# Arguments of newer Megatron that change what the encoder gets, for models that megatron-core 0.19 cannot build.
_UNSUPPORTED = ("image_break_token", "match_tiling_dynamic_resolution", "masked_tiling_dynamic_resolution")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """Names are Megatron's, where it has one.

    img_h, img_w: of a tile, in pixels. num_class_tokens: of the encoder; `disable_vision_class_token` drops them.
    spatial_merge_size: what the patch grid's sides are multiples of, besides what pixel_shuffle and conv_merging need.
    thumbnail_area_threshold: with dynamic resolution, the share of img_h x img_w below which an image gets a thumbnail.
    dynamic_resolution_max_patches: 0 sets no limit. tile_tag_len: tokens before each tile, 0 without tile tags.
    pixel_mean, pixel_std: of pixels scaled to 0..1.
    image_resize_mode: `stretch` to the tile whatever the aspect ratio, as Megatron's examples do; or `center_crop`: the
    short side to the tile's, then its centre cut out, as in the CLIP preprocessing of Hugging Face LLaVA-1.5.
    image_background: what shows through transparent pixels.
    """

    vision_model_type: str
    img_h: int
    img_w: int
    patch_dim: int
    num_class_tokens: int
    disable_vision_class_token: bool
    pixel_shuffle: bool
    conv_merging: bool
    spatial_merge_size: int
    use_tiling: bool
    max_num_tiles: int
    use_thumbnail: bool
    use_area_weighted_aspect_ratio: bool
    thumbnail_area_threshold: float
    dynamic_resolution: bool
    dynamic_resolution_min_patches: int
    dynamic_resolution_max_patches: int
    dynamic_resolution_min_side: int
    tile_tag_len: int
    num_frames: int
    pixel_mean: Triple
    pixel_std: Triple
    image_resize_mode: ResizeMode
    image_resample: Resample
    image_background: Rgb

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """From resolved argument values by destination; absent and None mean Megatron's default, or the encoder's.

        img_h and img_w must be there. pixel_mean and pixel_std may count from 0 to 1 or from 0 to 255: Megatron's own
        sources use both. Raises ImageSettingsError, which names the argument, for whatever cannot be done.
        """
        given = ArgumentValues(values)
        for name in _UNSUPPORTED:
            given.refuse(name)
        encoder = find_encoder(given.text("vision_model_type", "clip"))
        max_num_tiles = given.integer("max_num_tiles", 1)
        prompt_format = given.text("tokenizer_prompt_format", "")
        tagged = given.boolean("use_tile_tags")
        default_tag_len = (
            tile_tag_length(max_num_tiles, prompt_format) if tagged and not given.has("tile_tag_len") else 0
        )
        return cls(
            vision_model_type=encoder.name,
            img_h=given.integer("img_h"),
            img_w=given.integer("img_w"),
            patch_dim=given.integer("patch_dim", encoder.patch_dim),
            num_class_tokens=given.integer("class_token_len", encoder.class_token_len),
            disable_vision_class_token=given.boolean("disable_vision_class_token"),
            pixel_shuffle=given.boolean("pixel_shuffle"),
            conv_merging=given.boolean("conv_merging"),
            spatial_merge_size=given.integer("spatial_merge_size", 1),
            use_tiling=given.boolean("use_tiling"),
            max_num_tiles=max_num_tiles,
            use_thumbnail=given.boolean("use_thumbnail"),
            use_area_weighted_aspect_ratio=given.boolean("use_area_weighted_aspect_ratio"),
            thumbnail_area_threshold=given.number("thumbnail_area_threshold", 0.8),
            dynamic_resolution=given.boolean("dynamic_resolution"),
            dynamic_resolution_min_patches=given.integer("dynamic_resolution_min_patches", 0),
            dynamic_resolution_max_patches=given.integer("dynamic_resolution_max_patches", 0),
            dynamic_resolution_min_side=given.integer("dynamic_resolution_min_side", 0),
            tile_tag_len=given.integer("tile_tag_len", default_tag_len) if tagged else 0,
            num_frames=given.integer("num_frames", 1),
            pixel_mean=given.pixel_triple("pixel_mean", encoder.statistics.mean),
            pixel_std=given.pixel_triple("pixel_std", encoder.statistics.std),
            image_resize_mode=given.choice("image_resize_mode", ResizeMode, "stretch"),
            image_resample=given.choice("image_resample", Resample, "bicubic"),
            image_background=given.colour("image_background", "#ffffff"),
        )

    @property
    def kept_class_tokens(self) -> int:
        """Class tokens that reach the language model, per tile."""
        return 0 if self.disable_vision_class_token else self.num_class_tokens

    @property
    def merge_side(self) -> int:
        """Patches merged into one token, along each side of the grid: two successive halvings make 4."""
        return (2 if self.pixel_shuffle else 1) * (2 if self.conv_merging else 1)

    @property
    def grid_multiple(self) -> int:
        """What both sides of a patch grid must be multiples of."""
        return lcm(self.merge_side, self.spatial_merge_size)

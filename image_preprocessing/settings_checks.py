"""Which settings can hold together: what LLaVAModel asserts or would break on, refused by the argument's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_preprocessing.encoders import ENCODERS
from image_preprocessing.errors import ImageSettingsError
from image_preprocessing.tile_tags import MOST_TAGGED_TILES

if TYPE_CHECKING:
    from image_preprocessing.settings import ImageSettings

_POSITIVE = ("img_h", "img_w", "patch_dim", "spatial_merge_size", "max_num_tiles", "num_frames")
_NOT_NEGATIVE = (
    "num_class_tokens",
    "thumbnail_area_threshold",
    "dynamic_resolution_min_patches",
    "dynamic_resolution_max_patches",
    "dynamic_resolution_min_side",
    "tile_tag_len",
)
_ARGUMENTS = {"num_class_tokens": "class_token_len"}  # where a field is not named as its argument
_MOST_TILES = 100


def check_settings(settings: ImageSettings) -> None:
    """Raises ImageSettingsError for the first that does not hold."""
    _check_ranges(settings)
    _check_encoder(settings)
    _check_tile(settings)
    if settings.use_tiling:
        _check_tiling(settings)
    if settings.dynamic_resolution:
        _check_dynamic_resolution(settings)
    if settings.image_resize_mode == "center_crop":
        _check_center_crop(settings)


def _refuse_unless(holds: bool, argument: str, reason: str) -> None:
    if not holds:
        raise ImageSettingsError(argument, reason)


def _check_ranges(settings: ImageSettings) -> None:
    for names, least in ((_POSITIVE, 1), (_NOT_NEGATIVE, 0)):
        for name in names:
            value = getattr(settings, name)
            _refuse_unless(value >= least, _ARGUMENTS.get(name, name), f"is {value}: it must be at least {least}")
    _refuse_unless(min(settings.pixel_std) > 0, "pixel_std", f"is {settings.pixel_std}: each must be above 0")
    if settings.tile_tag_len:
        most = settings.max_num_tiles <= MOST_TAGGED_TILES
        _refuse_unless(most, "max_num_tiles", f"is {settings.max_num_tiles}: use_tile_tags allows {MOST_TAGGED_TILES}")


def _check_encoder(settings: ImageSettings) -> None:
    encoder = ENCODERS[settings.vision_model_type]
    its_own = settings.num_class_tokens == encoder.class_token_len
    reason = f"is {settings.num_class_tokens}: {encoder.name} has {encoder.class_token_len} in LLaVAModel"
    _refuse_unless(encoder.is_radio or its_own, "class_token_len", reason)
    reason = f"{encoder.name} takes images of one size only: turn it off"
    _refuse_unless(encoder.is_radio or not settings.dynamic_resolution, "dynamic_resolution", reason)


def _check_tile(settings: ImageSettings) -> None:
    """A tile, which with dynamic resolution is the thumbnail, is a whole grid of patches that can be merged."""
    merged = settings.merge_side if settings.use_thumbnail or not settings.dynamic_resolution else 1
    for name in ("img_h", "img_w"):
        side, unit = getattr(settings, name), settings.patch_dim * merged
        reason = f"is {side}: not a multiple of {unit} (patch_dim {settings.patch_dim}, {merged} merged into one)"
        _refuse_unless(side % unit == 0, name, reason)
    if settings.merge_side > 1:
        reason = "merging needs the patches alone: set disable_vision_class_token"
        name = "pixel_shuffle" if settings.pixel_shuffle else "conv_merging"
        _refuse_unless(settings.kept_class_tokens == 0, name, reason)
    if settings.pixel_shuffle and not settings.dynamic_resolution:
        # LLaVAModel takes the square root of the number of patches for both sides of the grid.
        reason = f"needs square tiles, not {settings.img_w}x{settings.img_h}"
        _refuse_unless(settings.img_h == settings.img_w, "pixel_shuffle", reason)


def _check_tiling(settings: ImageSettings) -> None:
    _refuse_unless(not settings.dynamic_resolution, "use_tiling", "excludes dynamic_resolution: turn one of them off")
    square = settings.img_h == settings.img_w
    _refuse_unless(square, "use_tiling", f"needs square tiles, not {settings.img_w}x{settings.img_h}")
    reason = f"is {settings.max_num_tiles}: at most {_MOST_TILES}"
    _refuse_unless(settings.max_num_tiles <= _MOST_TILES, "max_num_tiles", reason)


def _check_dynamic_resolution(settings: ImageSettings) -> None:
    _refuse_unless(settings.tile_tag_len == 0, "use_tile_tags", "excludes dynamic_resolution: turn one of them off")
    most, least = settings.dynamic_resolution_max_patches, settings.dynamic_resolution_min_patches
    if not most:
        return
    reason = f"is {least}, more than dynamic_resolution_max_patches, {most}"
    _refuse_unless(least <= most, "dynamic_resolution_min_patches", reason)
    smallest = settings.grid_multiple**2
    reason = f"is {most}: the smallest grid that can be merged has {smallest}"
    _refuse_unless(smallest <= most, "dynamic_resolution_max_patches", reason)
    side = -(-settings.dynamic_resolution_min_side // settings.patch_dim)
    reason = (
        f"is {settings.dynamic_resolution_min_side}: a square of that side has {side * side} patches, and {most} is"
    )
    _refuse_unless(side * side <= most, "dynamic_resolution_min_side", f"{reason} dynamic_resolution_max_patches")


def _check_center_crop(settings: ImageSettings) -> None:
    whole = not settings.use_tiling and not settings.dynamic_resolution
    _refuse_unless(whole, "image_resize_mode", "center_crop excludes use_tiling and dynamic_resolution")
    square = settings.img_h == settings.img_w
    _refuse_unless(
        square, "image_resize_mode", f"center_crop needs img_h = img_w, not {settings.img_h}, {settings.img_w}"
    )

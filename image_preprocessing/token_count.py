"""How many rows an image's patches become in the language model's input.

Source: `get_num_image_embeddings` of megatron/core/models/vision/clip_vit_model.py, and for grids of their own size
`_preprocess_data` of llava_model.py.
"""

from __future__ import annotations

from image_preprocessing.dynamic_resolution import PatchGrid
from image_preprocessing.limits import DEFAULT_LIMITS, ImageLimits
from image_preprocessing.settings import ImageSettings


def grid_embeddings(grid: PatchGrid, settings: ImageSettings) -> int:
    """Rows that the encoder, and what merges after it, make of one grid: kept class tokens and merged patches."""
    return (grid.num_patches + settings.kept_class_tokens) // settings.merge_side**2


def tile_grid_of_patches(settings: ImageSettings) -> PatchGrid:
    """The patches of one tile, or of a thumbnail."""
    return PatchGrid(settings.img_h // settings.patch_dim, settings.img_w // settings.patch_dim)


def tokens_per_tile(settings: ImageSettings) -> int:
    """Embeddings of one tile and the tokens of its tag."""
    return grid_embeddings(tile_grid_of_patches(settings), settings) + settings.tile_tag_len


def max_image_tokens(settings: ImageSettings, limits: ImageLimits = DEFAULT_LIMITS) -> int:
    """An upper bound for any one image, to plan memory by."""
    of_patches = settings.dynamic_resolution_max_patches or limits.max_patches
    if not settings.dynamic_resolution:
        tiles = settings.max_num_tiles + settings.use_thumbnail if settings.use_tiling else 1
        return max(tiles, settings.num_frames) * tokens_per_tile(settings)
    whole = (of_patches + settings.kept_class_tokens) // settings.merge_side**2
    with_thumbnail = whole + (tokens_per_tile(settings) if settings.use_thumbnail else 0)
    return max(with_thumbnail, settings.num_frames * whole)

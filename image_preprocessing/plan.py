"""What becomes of an image of a given size: the encoder inputs it is cut into and the tokens they make. No pixels."""

from __future__ import annotations

from dataclasses import dataclass

from image_preprocessing.dynamic_resolution import PatchGrid, patch_grid
from image_preprocessing.errors import ImageSizeError
from image_preprocessing.limits import DEFAULT_LIMITS, ImageLimits
from image_preprocessing.settings import ImageSettings
from image_preprocessing.tiling import TileGrid, closest_area_weighted_aspect_ratio, closest_aspect_ratio
from image_preprocessing.token_count import grid_embeddings, tile_grid_of_patches, tokens_per_tile


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """Encoder inputs of one size: the tiles of a grid, row by row, then the thumbnail; or the frames of an animation.

    tile_h, tile_w: in pixels. embeddings_per_tile: rows from the encoder. tile_tag_len: tokens before them.
    """

    tile_h: int
    tile_w: int
    grid: TileGrid
    has_thumbnail: bool
    num_frames: int
    embeddings_per_tile: int
    tile_tag_len: int

    @property
    def num_tiles(self) -> int:
        """Encoder inputs: `num_image_tiles` of LLaVAModel."""
        return (self.grid.num_tiles + self.has_thumbnail) * self.num_frames

    @property
    def num_embeddings(self) -> int:
        """Rows from the encoder."""
        return self.num_tiles * self.embeddings_per_tile

    @property
    def num_tokens(self) -> int:
        """Rows in the language model's input, tile tags included."""
        return self.num_tiles * (self.embeddings_per_tile + self.tile_tag_len)

    @property
    def imgs_sizes(self) -> tuple[tuple[int, int], ...]:
        """Height and width in pixels of every encoder input."""
        return ((self.tile_h, self.tile_w),) * self.num_tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPlan:
    """Encoder inputs of their own size: the image, then its thumbnail; or the frames of an animation.

    embeddings: rows from the encoder for each of `grids`.
    """

    patch_dim: int
    grid: PatchGrid
    thumbnail: PatchGrid | None
    num_frames: int
    embeddings: tuple[int, ...]

    @property
    def grids(self) -> tuple[PatchGrid, ...]:
        """One for every encoder input."""
        whole = (self.grid,) * self.num_frames
        return whole if self.thumbnail is None else (*whole, self.thumbnail)

    @property
    def num_tiles(self) -> int:
        """Encoder inputs."""
        return len(self.grids)

    @property
    def num_embeddings(self) -> int:
        """Rows from the encoder."""
        return sum(self.embeddings)

    @property
    def num_tokens(self) -> int:
        """Rows in the language model's input."""
        return self.num_embeddings

    @property
    def imgs_sizes(self) -> tuple[tuple[int, int], ...]:
        """Height and width in pixels of every encoder input: `imgs_sizes` of RADIOViTModel."""
        return tuple((grid.rows * self.patch_dim, grid.columns * self.patch_dim) for grid in self.grids)


ImagePlan = TilePlan | PatchPlan


def plan_image(
    width: int, height: int, settings: ImageSettings, *, num_frames: int = 1, limits: ImageLimits = DEFAULT_LIMITS
) -> ImagePlan:
    """The plan for an upright image of this size, in pixels; several frames are neither tiled nor given a thumbnail.

    Raises ImageSizeError where no plan exists, ImageLimitError for one of more than `limits.max_patches` patches.
    """
    if min(width, height, num_frames) < 1:
        raise ImageSizeError(f"{width}x{height} pixels in {num_frames} frames is no image")
    if settings.dynamic_resolution:
        plan: ImagePlan = _plan_patches(width, height, settings, num_frames)
    else:
        plan = _plan_tiles(width, height, settings, num_frames)
    num_patches = sum(h * w for h, w in plan.imgs_sizes) // settings.patch_dim**2
    limits.check_patches(width, height, num_patches)
    return plan


def _plan_tiles(width: int, height: int, settings: ImageSettings, num_frames: int) -> TilePlan:
    if settings.tile_tag_len and num_frames > settings.max_num_tiles + 1:
        raise ImageSizeError(f"{num_frames} frames: there are tile tags for {settings.max_num_tiles + 1}")
    grid = TileGrid(1, 1)
    if settings.use_tiling and num_frames == 1:
        weighted = settings.use_area_weighted_aspect_ratio
        choose = closest_area_weighted_aspect_ratio if weighted else closest_aspect_ratio
        grid = choose(width, height, settings.img_h, settings.max_num_tiles)
    return TilePlan(
        tile_h=settings.img_h,
        tile_w=settings.img_w,
        grid=grid,
        has_thumbnail=settings.use_thumbnail and grid.num_tiles > 1,
        num_frames=num_frames,
        embeddings_per_tile=tokens_per_tile(settings) - settings.tile_tag_len,
        tile_tag_len=settings.tile_tag_len,
    )


def _plan_patches(width: int, height: int, settings: ImageSettings, num_frames: int) -> PatchPlan:
    grid = patch_grid(width, height, settings)
    thumbnail = tile_grid_of_patches(settings) if num_frames == 1 and _wants_thumbnail(grid, settings) else None
    embeddings = (grid_embeddings(grid, settings),) * num_frames
    if thumbnail is not None:
        embeddings = (*embeddings, grid_embeddings(thumbnail, settings))
    return PatchPlan(
        patch_dim=settings.patch_dim, grid=grid, thumbnail=thumbnail, num_frames=num_frames, embeddings=embeddings
    )


def _wants_thumbnail(grid: PatchGrid, settings: ImageSettings) -> bool:
    """With dynamic resolution a small image gets a second, enlarged one; source: Megatron-Energon's strategies."""
    area = grid.num_patches * settings.patch_dim**2
    share_of_thumbnail = settings.thumbnail_area_threshold * settings.img_h * settings.img_w
    return settings.use_thumbnail and area < share_of_thumbnail

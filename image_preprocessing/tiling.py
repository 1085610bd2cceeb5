"""How many tiles an image is cut into: a grid near its aspect ratio, out of those with at most `max_num_tiles` tiles.

Source: examples/multimodal/image_processing.py, whose first rule is InternVL's (arXiv 2404.16821, section 3.3).

Scores are compared as IEEE doubles, in upstream's order of operations, and not as the exact fractions they stand for.
An image of 1000x1200 lies exactly between two grids of six tiles: training took what rounding made of it, and serving
has to take the same. Division of integers is correctly rounded, so the choice is the same on every machine.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

_COVERED = 0.6  # of the image's area: tiles beyond that share count no more


class TileGrid(NamedTuple):
    """Tiles across and down."""

    columns: int
    rows: int

    @property
    def num_tiles(self) -> int:
        return self.columns * self.rows


@cache
def candidate_grids(max_num_tiles: int) -> tuple[TileGrid, ...]:
    """Every grid of up to `max_num_tiles` tiles, by number of tiles: earlier ones win an even score.

    Upstream leaves the order of equally many tiles to a set's; it matters to one rounding error among square images.
    """
    sides = range(1, max_num_tiles + 1)
    grids = (TileGrid(columns, rows) for columns in sides for rows in sides if columns * rows <= max_num_tiles)
    return tuple(sorted(grids, key=lambda grid: grid.num_tiles))


def closest_aspect_ratio(width: int, height: int, tile_side: int, max_num_tiles: int) -> TileGrid:
    """The grid whose aspect ratio differs least; of equal ones a larger one, if the image covers half of its area."""
    best, least = TileGrid(1, 1), float("inf")
    for grid in candidate_grids(max_num_tiles):
        difference = abs(width / height - grid.columns / grid.rows)
        covers_half = 2 * width * height > tile_side * tile_side * grid.num_tiles
        if difference < least or (difference == least and covers_half):
            best, least = grid, difference
    return best


def closest_area_weighted_aspect_ratio(width: int, height: int, tile_side: int, max_num_tiles: int) -> TileGrid:
    """The grid with the best product of two shares: the image's area that it covers, and how alike the ratios are."""
    best, most = TileGrid(1, 1), float("-inf")
    ratio = width / height
    for grid in candidate_grids(max_num_tiles):
        grid_ratio = grid.columns / grid.rows
        covered = min(grid.num_tiles * tile_side * tile_side / (width * height), _COVERED)
        score = covered * min(grid_ratio / ratio, ratio / grid_ratio)
        if score > most:
            best, most = grid, score
    return best

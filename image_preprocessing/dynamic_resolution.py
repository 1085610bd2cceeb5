"""The patch grid of an image in its own aspect ratio (RADIO), in integers throughout.

Source: `dynamic_res_preprocess` of Megatron-LM's dynamic text generation server, and its minimum side from the tiling
strategies of Megatron-Energon. There the roots are floating-point, which loses a row or column in about one image of
ten thousand, and a strip that shrinks below one patch fails; here every size has a grid.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

from image_preprocessing.settings import ImageSettings


class PatchGrid(NamedTuple):
    """Patches down and across."""

    rows: int
    columns: int

    @property
    def num_patches(self) -> int:
        return self.rows * self.columns


def patch_grid(width: int, height: int, settings: ImageSettings) -> PatchGrid:
    """The grid for an image of this size in pixels, which is then resized to it.

    Both sides are multiples of `grid_multiple`. At most `dynamic_resolution_max_patches`, whatever else is asked for;
    at least `dynamic_resolution_min_patches`, and a short side of `dynamic_resolution_min_side` pixels, as far as that
    and rounding to the multiple leave room. Images are not enlarged otherwise.
    """
    # Without a limit nothing is ever shrunk: more patches than any step below could ask for.
    most = settings.dynamic_resolution_max_patches or 1 << 62
    grid = PatchGrid(_ceil_div(height, settings.patch_dim), _ceil_div(width, settings.patch_dim))
    grid = _shrink(grid, most)
    grid = _grow(grid, settings.dynamic_resolution_min_patches, most)
    grid = _widen(grid, _ceil_div(settings.dynamic_resolution_min_side, settings.patch_dim), most)
    return _align(grid, settings.grid_multiple, most)


def _shrink(grid: PatchGrid, most: int) -> PatchGrid:
    """In its aspect ratio to at most `most` patches: each side times sqrt(most / patches), rounded down."""
    if grid.num_patches <= most:
        return grid
    rows = isqrt(most * grid.rows // grid.columns)
    columns = isqrt(most * grid.columns // grid.rows)
    return _cap(PatchGrid(max(1, rows), max(1, columns)), most)


def _grow(grid: PatchGrid, least: int, most: int) -> PatchGrid:
    """In its aspect ratio to at least `least` patches: each side times sqrt(least / patches), rounded up."""
    if grid.num_patches >= least:
        return grid
    rows = _ceil_sqrt(_ceil_div(least * grid.rows, grid.columns))
    columns = _ceil_sqrt(_ceil_div(least * grid.columns, grid.rows))
    return _cap(PatchGrid(rows, columns), most)


def _widen(grid: PatchGrid, short_side: int, most: int) -> PatchGrid:
    """To a short side of at least `short_side` patches, in its aspect ratio unless that makes more than `most`."""
    short = min(grid)
    if short >= short_side:
        return grid
    rows = _ceil_div(grid.rows * short_side, short)
    columns = _ceil_div(grid.columns * short_side, short)
    return _cap(PatchGrid(rows, columns), most)


def _cap(grid: PatchGrid, most: int) -> PatchGrid:
    """The long side cut until there are at most `most` patches."""
    if grid.num_patches <= most:
        return grid
    if grid.rows < grid.columns:
        return PatchGrid(grid.rows, max(1, most // grid.rows))
    return PatchGrid(max(1, most // grid.columns), grid.columns)


def _align(grid: PatchGrid, multiple: int, most: int) -> PatchGrid:
    """Each side to a multiple: up where `most` allows, else down; rows first."""
    rows = _align_side(grid.rows, grid.columns, multiple, most)
    columns = _align_side(grid.columns, rows, multiple, most)
    # A thin side that went up to one multiple may have taken the room of the long one.
    room = most // rows // multiple * multiple
    return PatchGrid(rows, min(columns, room)) if room else PatchGrid(most // columns // multiple * multiple, columns)


def _align_side(side: int, other: int, multiple: int, most: int) -> int:
    up = _ceil_div(side, multiple) * multiple
    if up * other <= most:
        return up
    return max(multiple, side // multiple * multiple)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _ceil_sqrt(number: int) -> int:
    return isqrt(number - 1) + 1 if number > 0 else 0

"""The choice of a tile grid: known answers of upstream's rules, and both rules restated as one sort key each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_preprocessing.tiling import (
    TileGrid,
    candidate_grids,
    closest_area_weighted_aspect_ratio,
    closest_aspect_ratio,
)

SIDES = st.one_of(st.integers(1, 20_000), st.sampled_from([224, 336, 448, 512, 600, 640, 768, 1000, 1080, 1200, 1920]))
RULES = [closest_aspect_ratio, closest_area_weighted_aspect_ratio]


def rejudge(width, height, side, most, weighted):
    """Upstream's decision by other means: score everything, then look at the best scores only."""
    order = sorted(
        {(i, j) for i in range(1, most + 1) for j in range(1, most // i + 1)}, key=lambda grid: grid[0] * grid[1]
    )
    if weighted:
        aspect = width / height
        scores = [
            min((i * j * side * side) / (width * height), 0.6) * min((i / j) / aspect, aspect / (i / j))
            for i, j in order
        ]
        return order[scores.index(max(scores))]
    distances = [abs(width / height - i / j) for i, j in order]
    first, *ties = [grid for grid, distance in zip(order, distances, strict=True) if distance == min(distances)]
    large_enough = [(i, j) for i, j in ties if width * height > 0.5 * side * side * i * j]
    return large_enough[-1] if large_enough else first


@settings(max_examples=500, deadline=None)
@given(SIDES, SIDES, st.sampled_from([224, 448, 512]), st.integers(1, 14))
def test_the_best_grid_by_either_rule(width, height, side, most):
    assert closest_aspect_ratio(width, height, side, most) == rejudge(width, height, side, most, weighted=False)
    assert closest_area_weighted_aspect_ratio(width, height, side, most) == rejudge(
        width, height, side, most, weighted=True
    )


@pytest.mark.parametrize(
    ("size", "most", "grid"),
    [
        ((448, 448), 6, (1, 1)),  # covers more than half of one tile, not of four
        ((896, 896), 6, (2, 2)),
        ((600, 600), 6, (1, 1)),
        ((640, 640), 6, (2, 2)),
        ((800, 400), 6, (2, 1)),
        ((400, 800), 6, (1, 2)),
        ((1920, 1080), 6, (2, 1)),
        ((1920, 1080), 12, (4, 2)),
        ((1600, 1200), 12, (4, 3)),
        ((10_000, 1), 6, (6, 1)),
        ((1, 10_000), 12, (1, 12)),
        ((1, 1), 12, (1, 1)),
        ((1000, 1200), 6, (2, 2)),  # exactly between 2x3 and 1x1: rounding decides, as in training
        ((448, 768), 6, (2, 3)),
    ],
)
def test_closest_aspect_ratio_with_tiles_of_448(size, most, grid):
    assert closest_aspect_ratio(*size, 448, most) == grid


@pytest.mark.parametrize(
    ("size", "most", "grid"),
    [
        ((448, 448), 12, (1, 1)),
        ((1920, 1080), 12, (4, 2)),
        ((1920, 1080), 6, (3, 2)),
        ((1600, 1200), 12, (4, 3)),
        ((4000, 3000), 12, (4, 3)),
        ((10_000, 1), 12, (12, 1)),
        ((1, 1), 12, (1, 1)),
    ],
)
def test_area_weighted_with_tiles_of_448(size, most, grid):
    assert closest_area_weighted_aspect_ratio(*size, 448, most) == grid


@settings(max_examples=200, deadline=None)
@given(SIDES, SIDES, st.integers(1, 30))
def test_a_grid_has_at_most_so_many_tiles_and_turns_with_the_image(width, height, most):
    for rule in RULES:
        grid = rule(width, height, 448, most)
        assert 1 <= grid.num_tiles <= most
        if width >= 2 * height:
            assert grid.columns >= grid.rows
        if height >= 2 * width:
            assert grid.rows >= grid.columns


def test_candidates_are_all_grids_by_size():
    assert candidate_grids(1) == (TileGrid(1, 1),)
    grids = candidate_grids(12)
    assert len(grids) == len(set(grids)) == sum(12 // columns for columns in range(1, 13))
    assert [grid.num_tiles for grid in grids] == sorted(grid.num_tiles for grid in grids)

"""Dynamic resolution: a grid for every size, within its limits, and upstream's wherever upstream has one."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_preprocessing.dynamic_resolution import patch_grid
from image_preprocessing.settings import ImageSettings

SIDES = st.one_of(st.integers(1, 20_000), st.sampled_from([1, 15, 16, 17, 512, 20_000]))


@st.composite
def dynamic_settings(draw):
    merging = draw(st.sampled_from(["none", "pixel_shuffle", "conv_merging", "both"]))
    multiple = {"none": 1, "both": 4}.get(merging, 2)
    most = draw(st.one_of(st.just(0), st.integers(multiple**2, 4096)))
    return ImageSettings.from_values(
        {
            "vision_model_type": draw(st.sampled_from(["radio", "radio-g"])),
            "img_h": 16 * 14 * 4,
            "img_w": 16 * 14 * 4,
            "dynamic_resolution": True,
            "disable_vision_class_token": True,
            "pixel_shuffle": merging in ("pixel_shuffle", "both"),
            "conv_merging": merging in ("conv_merging", "both"),
            "dynamic_resolution_max_patches": most,
            "dynamic_resolution_min_patches": draw(st.integers(0, most or 2048)),
            "dynamic_resolution_min_side": draw(st.integers(0, 14 * math.isqrt(most or 400))),
        }
    )


@settings(max_examples=600, deadline=None)
@given(SIDES, SIDES, dynamic_settings())
def test_every_size_has_a_grid_within_the_limits(width, height, wanted):
    grid = patch_grid(width, height, wanted)
    assert min(grid) >= wanted.grid_multiple
    assert grid.rows % wanted.grid_multiple == grid.columns % wanted.grid_multiple == 0
    most = wanted.dynamic_resolution_max_patches
    assert not most or grid.num_patches <= most
    if wanted.grid_multiple == 1:
        # One row or column may be missing where minimum and maximum leave no room for the aspect ratio.
        slack = max(grid) if most else 0
        assert grid.num_patches + slack >= wanted.dynamic_resolution_min_patches
        assert min(grid) * wanted.patch_dim >= wanted.dynamic_resolution_min_side


@settings(max_examples=300, deadline=None)
@given(SIDES, SIDES, dynamic_settings())
def test_a_turned_image_has_a_turned_grid(width, height, wanted):
    """But for rounding to a multiple, which takes rows first, and for squares, which are cut in rows."""
    if wanted.grid_multiple == 1:
        grid, turned = patch_grid(width, height, wanted), patch_grid(height, width, wanted)
        assert sorted(grid) == sorted(turned)
        if width > height:
            assert grid.columns >= grid.rows or grid.num_patches == wanted.dynamic_resolution_max_patches


@settings(max_examples=300, deadline=None)
@given(SIDES, SIDES, st.integers(16, 4096), st.integers(0, 4096))
def test_more_patches_allowed_never_make_fewer(width, height, most, more):
    def grid(limit):
        values = {"vision_model_type": "radio", "img_h": 512, "img_w": 512, "dynamic_resolution": True}
        return patch_grid(width, height, ImageSettings.from_values(values | {"dynamic_resolution_max_patches": limit}))

    assert grid(most).num_patches <= grid(most + more).num_patches


def megatron_grid(width, height, most, least, multiple, patch=16):
    """The documented rule in exact arithmetic: Fractions compared, sides searched for instead of computed."""
    rows, columns = math.ceil(Fraction(height, patch)), math.ceil(Fraction(width, patch))

    def scaled_down(side):
        return max(n for n in range(side + 1) if n * n * rows * columns <= most * side * side)

    def scaled_up(side):
        return next(n for n in range(least * side + 1) if n * n * rows * columns >= least * side * side)

    if rows * columns > most:
        rows, columns = scaled_down(rows), scaled_down(columns)
    if rows * columns < least:
        rows, columns = scaled_up(rows), scaled_up(columns)
    for axis in (0, 1):
        side, other = (rows, columns) if axis == 0 else (columns, rows)
        down = side // multiple * multiple
        up = down if down == side else down + multiple
        side = up if up * other <= most else max(multiple, down)
        rows, columns = (side, other) if axis == 0 else (other, side)
    return rows, columns


@settings(max_examples=300, deadline=None)
@given(
    st.integers(40, 6000),
    st.integers(40, 6000),
    st.sampled_from([128, 256, 1000, 3072]),
    st.sampled_from([0, 1, 64]),
    st.booleans(),
)
def test_the_grid_is_the_documented_one(width, height, most, least, shuffled):
    wanted = ImageSettings.from_values(
        {
            "vision_model_type": "radio",
            "img_h": 512,
            "img_w": 512,
            "dynamic_resolution": True,
            "disable_vision_class_token": True,
            "pixel_shuffle": shuffled,
            "dynamic_resolution_max_patches": most,
            "dynamic_resolution_min_patches": least,
        }
    )
    rows, columns = megatron_grid(width, height, most, least, 2 if shuffled else 1)
    if 0 < rows * columns <= most:  # elsewhere upstream fails, and ours is held by the tests above
        assert patch_grid(width, height, wanted) == (rows, columns)


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((512, 512), (32, 32)),
        ((513, 512), (31, 32)),
        ((2500, 2500), (32, 32)),
        ((100, 100), (8, 8)),  # enlarged to 64 patches
        ((1, 1), (8, 8)),
        ((10_000, 1), (1, 625)),
        ((1, 20_000), (1024, 1)),
        ((640, 480), (27, 36)),
    ],
)
def test_known_grids(size, grid, settings_of):
    assert patch_grid(*size, settings_of("radio-dynamic")) == grid

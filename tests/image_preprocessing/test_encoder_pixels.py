"""From frames to the encoder's numbers: what is cut where, the order of patches, and normalisation."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from image_preprocessing.limits import DEFAULT_LIMITS
from image_preprocessing.pipeline import prepare_image
from image_preprocessing.pixels import normalise, patchify, value_table
from image_preprocessing.plan import plan_image
from image_preprocessing.resize import encoder_images


def restore(pixels, settings):
    """(3, H, W) normalised back to (H, W, 3) of 0..255."""
    scaled = pixels.transpose(1, 2, 0) * np.array(settings.pixel_std) + np.array(settings.pixel_mean)
    return np.round(scaled * 255).astype(np.uint8)


def test_values_are_normalised_by_channel(settings_of):
    settings = settings_of("llava", pixel_mean=[10, 20, 30], pixel_std=[2, 4, 8])
    image = np.array([[[10, 24, 22], [255, 0, 30]]], np.uint8)
    expected = [[[0, 122.5]], [[1, -5]], [[-1, 0]]]
    np.testing.assert_allclose(normalise(image, value_table(settings)), expected, atol=1e-5)


def test_every_value_is_the_formulas(settings_of):
    settings = settings_of("nvlm")
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    expected = (np.arange(256) / 255 - np.array(settings.pixel_mean)[:, None]) / np.array(settings.pixel_std)[:, None]
    np.testing.assert_allclose(normalise(ramp, value_table(settings))[:, 0], expected, rtol=1e-6)


def test_tiles_are_the_resized_image_row_by_row_and_then_the_thumbnail(noise, encode, settings_of):
    settings = settings_of("nvlm")
    image = noise(1344, 896)
    tiles = [restore(tile, settings) for tile in prepare_image(encode(image), settings).pixels]
    assert len(tiles) == 7
    whole = np.asarray(image)  # already 3 x 2 tiles, so that resizing changes nothing
    for index, tile in enumerate(tiles[:6]):
        top, left = index // 3 * 448, index % 3 * 448
        assert np.array_equal(tile, whole[top : top + 448, left : left + 448])
    assert np.array_equal(tiles[6], np.asarray(image.resize((448, 448), Image.Resampling.BICUBIC)))


@pytest.mark.parametrize("resample", ["bicubic", "bilinear", "lanczos"])
def test_the_filter_is_pillows(resample, noise, encode, settings_of):
    settings = settings_of("llava", image_resample=resample)
    image = noise(500, 300)
    expected = image.resize((336, 336), Image.Resampling[resample.upper()])
    assert np.array_equal(restore(prepare_image(encode(image), settings).pixels[0], settings), np.asarray(expected))


def test_patches_by_brute_force():
    pixels = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
    expected = [
        [pixels[channel, row + y, column + x] for channel in range(3) for y in range(2) for x in range(2)]
        for row in (0, 2)
        for column in (0, 2, 4)
    ]
    assert np.array_equal(patchify(pixels, 2), expected)


def test_dynamic_resolution_resizes_to_the_grid(noise, encode, settings_of):
    settings = settings_of("radio-dynamic-merged")
    image = noise(300, 200)
    prepared = prepare_image(encode(image), settings)
    (height, width), thumbnail = prepared.plan.imgs_sizes
    assert thumbnail == (512, 512)
    resized = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    expected = patchify(normalise(resized, value_table(settings)), 16)
    assert np.array_equal(prepared.pixels[: len(expected)], expected)
    assert len(prepared.pixels) == len(expected) + 32 * 32


def test_patches_are_cut_as_radio_cuts_them(noise, settings_of):
    """RADIOViTModel's own rearrangement of an image, spelt with einops."""
    import einops

    settings = settings_of("radio-dynamic")
    image = noise(320, 192)
    (pixels,) = encoder_images([image], plan_image(320, 192, settings), settings, DEFAULT_LIMITS)
    values = normalise(pixels, value_table(settings))
    theirs = einops.rearrange(values, "c (py yy) (px xx) -> (py px) (c yy xx)", yy=16, xx=16)
    assert np.array_equal(patchify(values, 16), theirs)

"""Settings from resolved argument values: defaults, units, and refusals that name the argument."""

from __future__ import annotations

import dataclasses

import pytest

from image_preprocessing.encoders import CLIP_STATISTICS, ENCODERS
from image_preprocessing.errors import ImageSettingsError
from image_preprocessing.settings import ImageSettings

SMALLEST = {"img_h": 336, "img_w": 336}
RADIO = {"vision_model_type": "radio", "img_h": 512, "img_w": 512}
DYNAMIC = RADIO | {"dynamic_resolution": True}
TAGGED = SMALLEST | {"use_tile_tags": True, "tokenizer_prompt_format": "chatml"}


def test_defaults_are_megatrons_and_the_encoders():
    settings = ImageSettings.from_values(SMALLEST)
    assert (settings.vision_model_type, settings.patch_dim, settings.num_class_tokens) == ("clip", 14, 1)
    assert (settings.pixel_mean, settings.pixel_std) == (CLIP_STATISTICS.mean, CLIP_STATISTICS.std)
    assert not settings.use_tiling
    assert settings.thumbnail_area_threshold == 0.8
    assert (settings.image_resize_mode, settings.image_background) == ("stretch", (255, 255, 255))


@pytest.mark.parametrize("name", list(ENCODERS))
def test_none_and_unrelated_values_do_not_count(name):
    side = 16 * 14
    bare = ImageSettings.from_values({"vision_model_type": name, "img_h": side, "img_w": side})
    names = {field.name for field in dataclasses.fields(bare)} | {"class_token_len", "use_tile_tags"}
    given = dict.fromkeys(names) | {"vision_model_type": name, "img_h": side, "img_w": side, "num_layers": 5}
    assert ImageSettings.from_values(given) == bare


@pytest.mark.parametrize("scale", [1, 255])
def test_statistics_in_either_unit(scale):
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    given = {"pixel_mean": [scale * value for value in mean], "pixel_std": [scale * value for value in std]}
    settings = ImageSettings.from_values(SMALLEST | given)
    assert settings.pixel_mean == pytest.approx(mean)
    assert settings.pixel_std == pytest.approx(std)


def test_statistics_may_be_in_different_units():
    settings = ImageSettings.from_values(SMALLEST | {"pixel_mean": (0.5, 0.5, 0.5), "pixel_std": (127.5, 127.5, 127.5)})
    assert settings.pixel_mean == settings.pixel_std == (0.5, 0.5, 0.5)


def test_unscaled_statistics():
    settings = ImageSettings.from_values(SMALLEST | {"pixel_mean": [0, 0, 0], "pixel_std": [1, 1, 1]})
    assert (settings.pixel_mean, settings.pixel_std) == ((0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        ({"img_w": 336}, "img_h"),
        ({"img_h": 336}, "img_w"),
        (SMALLEST | {"img_h": 340}, "img_h"),
        (SMALLEST | {"img_h": 0}, "img_h"),
        (SMALLEST | {"img_h": "336"}, "img_h"),
        (SMALLEST | {"img_h": True}, "img_h"),
        (SMALLEST | {"patch_dim": -14}, "patch_dim"),
        (SMALLEST | {"vision_model_type": "hf://x"}, "vision_model_type"),
        (SMALLEST | {"class_token_len": 8}, "class_token_len"),
        (RADIO | {"class_token_len": -1}, "class_token_len"),
        (SMALLEST | {"use_tiling": "yes"}, "use_tiling"),
        (SMALLEST | {"use_tiling": True, "img_w": 448}, "use_tiling"),
        (SMALLEST | {"use_tiling": True, "max_num_tiles": 101}, "max_num_tiles"),
        (SMALLEST | {"max_num_tiles": 0}, "max_num_tiles"),
        (SMALLEST | {"num_frames": 0}, "num_frames"),
        (SMALLEST | {"dynamic_resolution": True}, "dynamic_resolution"),
        (SMALLEST | {"pixel_shuffle": True}, "pixel_shuffle"),
        (SMALLEST | {"conv_merging": True}, "conv_merging"),
        (
            {"img_h": 14 * 5, "img_w": 14 * 5, "pixel_shuffle": True, "disable_vision_class_token": True},
            "img_h",
        ),
        (SMALLEST | {"img_w": 448, "pixel_shuffle": True, "disable_vision_class_token": True}, "pixel_shuffle"),
        (SMALLEST | {"pixel_mean": [1, 2]}, "pixel_mean"),
        (SMALLEST | {"pixel_mean": [1, 2, float("nan")]}, "pixel_mean"),
        (SMALLEST | {"pixel_std": [1, 0, 1]}, "pixel_std"),
        (SMALLEST | {"thumbnail_area_threshold": float("inf")}, "thumbnail_area_threshold"),
        (SMALLEST | {"image_resize_mode": "pad"}, "image_resize_mode"),
        (SMALLEST | {"image_resize_mode": "center_crop", "use_tiling": True}, "image_resize_mode"),
        (SMALLEST | {"image_resize_mode": "center_crop", "img_w": 448}, "image_resize_mode"),
        (SMALLEST | {"image_resample": "area"}, "image_resample"),
        (SMALLEST | {"image_background": "white"}, "image_background"),
        (SMALLEST | {"image_break_token": "<br>"}, "image_break_token"),
        (DYNAMIC | {"match_tiling_dynamic_resolution": True}, "match_tiling_dynamic_resolution"),
        (DYNAMIC | {"use_tiling": True}, "use_tiling"),
        (
            DYNAMIC | {"dynamic_resolution_max_patches": 8, "dynamic_resolution_min_patches": 9},
            "dynamic_resolution_min_patches",
        ),
        (
            DYNAMIC | {"dynamic_resolution_max_patches": 3, "spatial_merge_size": 2},
            "dynamic_resolution_max_patches",
        ),
        (
            DYNAMIC | {"dynamic_resolution_max_patches": 15, "dynamic_resolution_min_side": 49},
            "dynamic_resolution_min_side",
        ),
        (DYNAMIC | {"use_tile_tags": True, "tokenizer_prompt_format": "chatml"}, "use_tile_tags"),
        (TAGGED | {"tokenizer_prompt_format": None}, "tokenizer_prompt_format"),
        (TAGGED | {"tokenizer_prompt_format": "mistral"}, "tokenizer_prompt_format"),
        (TAGGED | {"max_num_tiles": 13}, "max_num_tiles"),
    ],
)
def test_refusals_name_the_argument(values, argument):
    with pytest.raises(ImageSettingsError) as caught:
        ImageSettings.from_values(values)
    assert caught.value.argument == argument
    assert str(caught.value).startswith(f"{argument}: ")


def test_an_odd_grid_is_only_refused_where_it_is_merged():
    odd = DYNAMIC | {"img_h": 27 * 16, "img_w": 27 * 16, "pixel_shuffle": True, "disable_vision_class_token": True}
    assert ImageSettings.from_values(odd).grid_multiple == 2
    with pytest.raises(ImageSettingsError, match="img_h"):
        ImageSettings.from_values(odd | {"use_thumbnail": True})


@pytest.mark.parametrize(
    ("values", "multiple"),
    [
        ({}, 1),
        ({"pixel_shuffle": True}, 2),
        ({"conv_merging": True}, 2),
        ({"pixel_shuffle": True, "conv_merging": True}, 4),
        ({"spatial_merge_size": 3}, 3),
        ({"pixel_shuffle": True, "spatial_merge_size": 2}, 2),
        ({"pixel_shuffle": True, "spatial_merge_size": 3}, 6),
    ],
)
def test_grid_multiple(values, multiple):
    assert ImageSettings.from_values(DYNAMIC | {"disable_vision_class_token": True} | values).grid_multiple == multiple

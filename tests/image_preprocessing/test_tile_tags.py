"""Tile tags of NVLM: texts, order and token counts."""

from __future__ import annotations

import pytest

from image_preprocessing.errors import ImageSettingsError, ImageSizeError
from image_preprocessing.plan import plan_image
from image_preprocessing.tile_tags import tile_tag_length, tile_tag_rows, tile_tag_texts


@pytest.mark.parametrize(
    ("tiles", "prompt_format", "first", "last"),
    [
        (6, "qwen2p0", "<tile_1>", "<tile_global_thumbnail>"),
        (6, "nvlm-yi-34b", "<tile_1>", "<tile_global>"),
        (6, "nemotron5", "<tile_01>", "<tile_global_thumbnail>"),
        (12, "chatml", "<tile_01>", "<tile_global_thumbnail0>"),
        (12, "nvlm-yi-34b", "<tile_01>", "<tile_global0>"),
        (12, "llama3p1", "<tile_01>", "<tile_global_thumbnail>"),
        (12, "nemotron5", "<tile_01>", "<tile_global_thumbnail>"),
    ],
)
def test_texts(tiles, prompt_format, first, last):
    texts = tile_tag_texts(tiles, prompt_format)
    assert (texts[0], texts[-1], len(texts)) == (first, last, tiles + 1)
    assert len(set(texts)) == tiles + 1


def test_more_tiles_than_tags():
    with pytest.raises(ImageSettingsError, match="max_num_tiles"):
        tile_tag_texts(13, "chatml")


def test_rows():
    assert tile_tag_rows(1, 6) == [6]
    assert tile_tag_rows(4, 6) == [0, 1, 2, 6]
    assert tile_tag_rows(7, 6) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("tiles", "prompt_format", "length"),
    [(6, "chatml", 5), (12, "chatml", 5), (6, "qwen2p5", 5), (12, "qwen2p5", 6), (12, "nemotron5-aligned", 6)],
)
def test_lengths(tiles, prompt_format, length):
    assert tile_tag_length(tiles, prompt_format) == length


def test_every_tile_of_a_plan_is_tagged(settings_of):
    plan = plan_image(1344, 896, settings_of("nvlm"))
    assert (plan.num_tiles, plan.num_embeddings, plan.num_tokens) == (7, 7 * 256, 7 * (256 + 5))
    assert plan_image(1344, 896, settings_of("nvlm", tile_tag_len=9)).num_tokens == 7 * (256 + 9)


def test_there_are_no_tags_for_more_frames(settings_of):
    settings = settings_of("nvlm", num_frames=8)
    assert plan_image(64, 64, settings, num_frames=7).num_tiles == 7
    with pytest.raises(ImageSizeError, match="8 frames"):
        plan_image(64, 64, settings, num_frames=8)

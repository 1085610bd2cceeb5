"""The number of tokens a plan promises, against embeddings made one by one from the prepared pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from PIL import Image

from image_preprocessing.encoders import ENCODERS
from image_preprocessing.errors import ImageLimitError, ImageSizeError
from image_preprocessing.limits import ImageLimits
from image_preprocessing.pipeline import prepare_image
from image_preprocessing.plan import plan_image
from image_preprocessing.settings import ImageSettings
from image_preprocessing.token_count import max_image_tokens, tokens_per_tile

SIDES = st.one_of(st.integers(1, 20_000), st.sampled_from([1, 2, 14, 16, 336, 448, 512, 20_000]))


def merged(rows: list[list[object]]) -> list[list[object]]:
    """Every 2 by 2 neighbours become one."""
    return [
        [rows[y][x : x + 2] + rows[y + 1][x : x + 2] for x in range(0, len(rows[y]), 2)] for y in range(0, len(rows), 2)
    ]


def embeddings_of(height: int, width: int, settings: ImageSettings) -> list[object]:
    """What LLaVAModel makes of one encoder input, as a list: class tokens and patches, dropped, merged, tagged."""
    rows: list[list[object]] = [
        [(top, left) for left in range(0, width, settings.patch_dim)] for top in range(0, height, settings.patch_dim)
    ]
    for merge in (settings.pixel_shuffle, settings.conv_merging):
        if merge:
            rows = merged(rows)
    class_tokens = [] if settings.disable_vision_class_token else ["class"] * settings.num_class_tokens
    return ["tag"] * settings.tile_tag_len + class_tokens + [patch for row in rows for patch in row]


@st.composite
def any_settings(draw):
    encoder = ENCODERS[draw(st.sampled_from(sorted(ENCODERS)))]
    side = encoder.patch_dim * 4 * draw(st.integers(1, 3))
    dropped = encoder.class_token_len == 0 or draw(st.booleans())
    values = {
        "vision_model_type": encoder.name,
        "img_h": side,
        "img_w": side,
        "disable_vision_class_token": dropped,
        "pixel_shuffle": dropped and draw(st.booleans()),
        "conv_merging": dropped and draw(st.booleans()),
        "use_thumbnail": draw(st.booleans()),
        "use_area_weighted_aspect_ratio": draw(st.booleans()),
    }
    if encoder.is_radio and draw(st.booleans()):
        values |= {
            "dynamic_resolution": True,
            "dynamic_resolution_max_patches": draw(st.integers(16, 400)),
            "dynamic_resolution_min_patches": draw(st.integers(0, 16)),
            "thumbnail_area_threshold": draw(st.sampled_from([0.0, 0.8, 100.0])),
        }
    else:
        tagged = draw(st.booleans())
        values |= {
            "use_tiling": draw(st.booleans()),
            "max_num_tiles": draw(st.integers(1, 12)),
            "use_tile_tags": tagged,
            "tokenizer_prompt_format": draw(st.sampled_from(["chatml", "qwen2p5", "nemotron5"])),
        }
    return ImageSettings.from_values(values)


@examples(max_examples=600, deadline=None)
@given(SIDES, SIDES, any_settings(), st.integers(1, 3))
def test_a_plan_counts_what_the_encoder_makes(width, height, settings, num_frames):
    try:
        plan = plan_image(width, height, settings, num_frames=num_frames)
    except ImageSizeError:
        assert settings.tile_tag_len
        assert num_frames > settings.max_num_tiles + 1
        return
    made = [embeddings_of(h, w, settings) for h, w in plan.imgs_sizes]
    assert plan.num_tokens == sum(len(tokens) for tokens in made)
    assert plan.num_embeddings == sum(token != "tag" for tokens in made for token in tokens)
    assert plan.num_tiles == len(made) >= num_frames
    if not settings.dynamic_resolution:
        most = settings.max_num_tiles + settings.use_thumbnail if settings.use_tiling else 1
        assert plan.num_tiles <= most * num_frames
    if num_frames == 1:
        assert plan.num_tokens <= max_image_tokens(settings)


@examples(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), any_settings())
def test_pixels_are_those_of_the_plan(width, height, settings):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (width % 256, height % 256, 0)).save(buffer, "BMP")
    prepared = prepare_image(buffer.getvalue(), settings)
    plan = plan_image(width, height, settings)
    assert prepared.plan == plan
    assert prepared.num_tokens == plan.num_tokens
    assert prepared.pixels.dtype == np.float32
    if settings.dynamic_resolution:
        patches = sum(h * w for h, w in plan.imgs_sizes) // settings.patch_dim**2
        assert prepared.pixels.shape == (patches, 3 * settings.patch_dim**2)
    else:
        assert prepared.pixels.shape == (plan.num_tiles, 3, settings.img_h, settings.img_w)


@examples(max_examples=200, deadline=None)
@given(SIDES, SIDES, any_settings(), st.integers(1, 2000), st.integers(0, 2000))
def test_larger_limits_refuse_nothing_more(width, height, settings, patches, more):
    try:
        plan = plan_image(width, height, settings, limits=ImageLimits(max_patches=patches))
    except ImageLimitError as error:
        assert error.limit == "max_patches"
        assert error.found > patches
    else:
        assert plan == plan_image(width, height, settings, limits=ImageLimits(max_patches=patches + more))


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (1, 20_000), (20_000, 20_000), (333, 777)])
def test_every_model_has_a_plan_for_every_size(size, settings):
    plan = plan_image(*size, settings)
    assert 1 <= plan.num_tokens <= max_image_tokens(settings)


def test_without_a_maximum_a_large_image_is_refused_clearly(settings_of):
    settings = settings_of("radio-dynamic", dynamic_resolution_max_patches=0)
    assert plan_image(4096, 4096, settings).num_tokens == 65_536 + 8
    with pytest.raises(ImageLimitError, match="5000x5000 pixels make 97,969 patches; at most 65,536 are encoded"):
        plan_image(5000, 5000, settings)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-1, 5)])
def test_no_size(size, settings):
    with pytest.raises(ImageSizeError):
        plan_image(*size, settings)


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("llava", 576), ("clip-with-class-token", 257), ("siglip", 256), ("nvlm", 256 + 5), ("nano-vl", 256)],
)
def test_known_tile_counts(model, tokens, settings_of):
    assert tokens_per_tile(settings_of(model)) == tokens


@pytest.mark.parametrize(
    ("size", "tiles", "tokens"),
    [((448, 448), 1, 261), ((896, 448), 3, 783), ((4000, 3000), 7, 7 * 261)],
)
def test_known_nvlm_counts(size, tiles, tokens, settings_of):
    plan = plan_image(*size, settings_of("nvlm"))
    assert (plan.num_tiles, plan.num_tokens) == (tiles, tokens)


def test_a_small_image_gets_a_thumbnail_with_dynamic_resolution(settings_of):
    settings = settings_of("radio-dynamic-merged")
    small, large = plan_image(256, 256, settings), plan_image(512, 512, settings)
    assert small.imgs_sizes == ((256, 256), (512, 512))
    assert small.num_tokens == 16 + 64
    assert large.imgs_sizes == ((512, 512),)


def test_tile_counts_are_megatrons():
    from megatron.core.models.vision.clip_vit_model import get_num_image_embeddings

    for encoder in ENCODERS.values():
        for dropped, shuffled, tagged, tiles in [
            (False, False, False, 1),
            (True, False, False, 6),
            (True, True, False, 12),
            (True, True, True, 6),
            (True, True, True, 12),
        ]:
            side = 28 * encoder.patch_dim
            for prompt_format in ("chatml", "qwen2p0", "nemotron5", "llama3p1"):
                values = {
                    "vision_model_type": encoder.name,
                    "img_h": side,
                    "img_w": side,
                    "disable_vision_class_token": dropped,
                    "pixel_shuffle": shuffled,
                    "use_tile_tags": tagged,
                    "max_num_tiles": tiles,
                    "tokenizer_prompt_format": prompt_format,
                }
                class_tokens, patch = encoder.class_token_len, encoder.patch_dim
                geometry = (
                    side,
                    side,
                    patch,
                    encoder.name,
                    dropped,
                    class_tokens,
                    shuffled,
                    tagged,
                    tiles,
                    prompt_format,
                )
                theirs = get_num_image_embeddings(*geometry)
                assert tokens_per_tile(ImageSettings.from_values(values)) == theirs

"""The first frame of an animation, or evenly spread ones where num_frames asks for more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from image_preprocessing.decode import decode_image
from image_preprocessing.errors import ImageDecodeError, ImageLimitError
from image_preprocessing.frames import spread_evenly
from image_preprocessing.limits import ImageLimits
from image_preprocessing.pipeline import prepare_image

GREYS = [0, 40, 80, 120, 160, 200, 240]


def animation(format, encode, size=(20, 10)):
    first, *rest = (Image.new("RGB", size, (grey, grey, grey)) for grey in GREYS)
    return encode(first, format, save_all=True, append_images=rest, duration=50, lossless=True)


def greys(decoded):
    return [round(float(np.asarray(frame).mean())) for frame in decoded.frames]


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
@pytest.mark.parametrize(
    ("num_frames", "expected"),
    [(1, [0]), (2, [0, 240]), (3, [0, 120, 240]), (4, [0, 80, 160, 240]), (7, GREYS), (50, GREYS)],
)
def test_frames_taken(format, num_frames, expected, encode):
    assert greys(decode_image(animation(format, encode), num_frames=num_frames)) == expected


def test_a_still_image_is_one_frame(encode):
    assert len(decode_image(encode(Image.new("L", (3, 3))), num_frames=8).frames) == 1


@given(st.integers(1, 500), st.integers(1, 60))
def test_spread(count, wanted):
    indices = spread_evenly(count, wanted)
    assert len(indices) == len(set(indices)) == min(count, wanted)
    assert list(indices) == sorted(indices)
    assert indices[0] == 0
    if len(indices) > 1:
        assert indices[-1] == count - 1


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"max_frames": 6}, "max_frames"),
        ({"max_animation_pixels": 1399}, "max_animation_pixels"),
        ({"max_pixels": 599}, "max_pixels"),
    ],
)
def test_limits_of_an_animation(format, limits, name, encode):
    data = animation(format, encode)
    with pytest.raises(ImageLimitError) as caught:
        decode_image(data, num_frames=3, limits=ImageLimits(**limits))
    assert caught.value.limit == name
    assert len(decode_image(data, num_frames=1, limits=ImageLimits(**limits)).frames) == 1


def test_a_frame_may_not_enlarge_a_gif_beyond_the_limits(encode):
    data = bytearray(encode(Image.new("P", (8, 8)), "GIF"))
    at = data.index(b"\x2c", 13) + 5
    data[at : at + 4] = b"\xff\xff\xff\xff"
    with pytest.raises((ImageLimitError, ImageDecodeError)):
        decode_image(bytes(data))


def test_a_truncated_later_frame_is_damage_where_it_is_wanted(encode, noise):
    data = encode(noise(64, 64, 1), "GIF", save_all=True, append_images=[noise(64, 64, 2), noise(64, 64, 3)])
    cut = data[: len(data) * 5 // 6]
    assert len(decode_image(cut).frames) == 1
    with pytest.raises(ImageDecodeError):
        decode_image(cut, num_frames=3)


def test_frames_are_several_encoder_inputs_of_one_image(encode, settings_of):
    settings = settings_of("nvlm", num_frames=3)
    prepared = prepare_image(animation("GIF", encode), settings)
    assert prepared.pixels.shape == (3, 3, 448, 448)
    assert prepared.num_tokens == 3 * (256 + 5)
    dynamic = prepare_image(animation("GIF", encode, size=(320, 160)), settings_of("radio-dynamic", num_frames=3))
    assert dynamic.pixels.shape == (3 * 200, 3 * 16 * 16)
    assert dynamic.plan.imgs_sizes == ((160, 320),) * 3
    assert dynamic.num_tokens == 3 * 208

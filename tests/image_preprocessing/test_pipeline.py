"""The whole way of one image: digests, process pools, and the inputs that broke other servers."""

from __future__ import annotations

import hashlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from image_preprocessing.errors import ImageError, ImageLimitError
from image_preprocessing.limits import ImageLimits
from image_preprocessing.pipeline import prepare_image


def test_equal_pictures_have_equal_digests_whatever_their_files(noise, encode, settings_of):
    settings, image = settings_of("llava"), noise(80, 60)
    digests = {prepare_image(encode(image, format), settings).digest for format in ("PNG", "BMP")}
    digests.add(prepare_image(encode(image.convert("RGBA"), compress_level=1), settings).digest)
    (digest,) = digests
    assert len(digest) == hashlib.sha256().digest_size


def test_the_digest_tells_pictures_plans_and_statistics_apart(noise, encode, settings_of):
    data = encode(noise(900, 450))
    one_pixel_off = noise(900, 450)
    one_pixel_off.putpixel((450, 200), tuple(255 - value for value in one_pixel_off.getpixel((450, 200))))
    prepared = [
        prepare_image(data, settings_of("nvlm")),
        prepare_image(encode(one_pixel_off), settings_of("nvlm")),
        prepare_image(data, settings_of("nvlm", use_thumbnail=False)),
        prepare_image(data, settings_of("nvlm", use_tile_tags=False)),
        prepare_image(data, settings_of("nvlm", pixel_mean=[0.5, 0.5, 0.5])),
        prepare_image(data, settings_of("nvlm", image_resample="bilinear")),
        prepare_image(encode(Image.new("RGB", (900, 450), "red")), settings_of("nvlm")),
        prepare_image(encode(Image.new("RGB", (900, 450), "blue")), settings_of("nvlm")),
    ]
    assert len({one.digest for one in prepared}) == len(prepared)


def test_the_background_shows_in_the_pixels(encode, settings_of):
    data = encode(Image.new("RGBA", (8, 8), (0, 0, 0, 0)))
    for colour, red in (("#ffffff", 1.0), ("#000000", 0.0)):
        settings = settings_of("siglip", image_background=colour, pixel_mean=[0, 0, 0], pixel_std=[1, 1, 1])
        assert np.unique(prepare_image(data, settings).pixels).tolist() == [red]


def test_pools_give_what_a_call_gives(noise, encode, settings_of):
    settings = settings_of("nvlm")
    files = [encode(noise(200 + 40 * seed, 300, seed)) for seed in range(3)]
    called = [prepare_image(data, settings) for data in files]
    with (
        ThreadPoolExecutor(2) as threads,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes,
    ):
        for pool in (threads, processes):
            for one, other in zip(called, pool.map(prepare_image, files, [settings] * 3), strict=True):
                assert (one.digest, one.plan, one.num_tokens) == (other.digest, other.plan, other.num_tokens)
                assert np.array_equal(one.pixels, other.pixels)
        with pytest.raises(ImageLimitError, match="at most 10 are accepted"):
            processes.submit(prepare_image, files[0], settings, ImageLimits(max_bytes=10)).result()


def kill_pack(encode, noise):
    """Files that brought other servers down, and what is expected of each: a picture or a refusal."""
    jpeg = encode(noise(200, 100), "JPEG")
    palette = Image.new("P", (30, 20))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    return {
        "1x10000": (encode(Image.new("RGB", (1, 10_000))), True),
        "10000x1": (encode(Image.new("RGB", (10_000, 1))), True),
        "1x1": (encode(Image.new("1", (1, 1))), True),
        "truncated JPEG": (jpeg[: len(jpeg) // 2], False),
        "animated GIF": (encode(noise(30, 20), "GIF", save_all=True, append_images=[noise(30, 20, 1)]), True),
        "16-bit": (encode(Image.fromarray(np.full((20, 30), 40_000, np.uint16))), True),
        "CMYK": (encode(Image.new("CMYK", (30, 20), (9, 99, 200, 0)), "JPEG"), True),
        "palette with transparency": (encode(palette, transparency=0), True),
        "zero bytes": (b"", False),
        "text": (b"not an image at all", False),
    }


def test_the_kill_pack(settings, encode, noise):
    for name, (data, usable) in kill_pack(encode, noise).items():
        try:
            prepared = prepare_image(data, settings)
        except ImageError as error:
            assert not usable, f"{name}: {error}"
        else:
            assert usable, name
            assert np.isfinite(prepared.pixels).all()
            assert prepared.num_tokens == prepared.plan.num_tokens > 0

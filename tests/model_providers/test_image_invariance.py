"""With packed linears and kernels an image's rows are the same to the last bit, beside whatever other images."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

_DROP = "--disable-vision-class-token"
# Every operator that an encoder or a projection can have is in one of them.
_VARIANTS = {
    "clip": ("clip", [_DROP, "--pixel-shuffle", "--vision-projection-bias"]),
    "clip, norm in the projection": ("clip", ["--vision-projection-normalization", "LayerNorm"]),
    "siglip": ("siglip", ["--vision-projection-activation", "silu", "--vision-projection-normalization", "RMSNorm"]),
    "internvit": ("internvit", ["--vision-kv-channels", "8", "--vision-activation", "swiglu"]),
    "radio": ("radio-g", [_DROP, "--pixel-shuffle", "--vision-projection-type", "affine"]),
}  # fmt: skip


def pictures(*tiles_each: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(tiles, 3, 56, 56, generator=generator) for tiles in tiles_each]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("encoder", "flags"), _VARIANTS.values(), ids=_VARIANTS.keys())
def test_tiles(
    encoder: str,
    flags: list[str],
    dtype: torch.dtype,
    llava_args: Callable[..., Namespace],
    served_llava: Callable[..., Any],
) -> None:
    served = served_llava(llava_args(encoder, *flags), dtype=dtype, packed_linears=True)
    images = pictures(1, 3, 1, 2, *[1] * 12)
    alone = [served.encode_images([image])[0] for image in images]
    assert all(image.std() > 0.01 for image in alone)
    check(alone, served.encode_images(images))
    check(alone[::-1], served.encode_images(images[::-1]))
    check(alone[1:3], served.encode_images(images[1:3]))
    torch.set_num_threads(2)  # `one_process` puts it back
    check(alone, served.encode_images(images))
    check(alone[:1], served.encode_images(images[:1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_patches_of_any_size(
    dtype: torch.dtype, llava_args: Callable[..., Namespace], served_llava: Callable[..., Any]
) -> None:
    args = llava_args("radio", "--dynamic-resolution", _DROP, "--pixel-shuffle")
    served = served_llava(args, dtype=dtype, packed_linears=True)
    sizes = [[(56, 84), (28, 28)], [(112, 56)], [(28, 28)], [(168, 140)]]
    generator = torch.Generator().manual_seed(1)
    images = [torch.randn(sum(h * w for h, w in own) // 14**2, 3 * 14**2, generator=generator) for own in sizes]
    alone = [served.encode_images([image], [own])[0] for image, own in zip(images, sizes, strict=True)]
    check(alone, served.encode_images(images, sizes))
    check(alone[::-1], served.encode_images(images[::-1], sizes[::-1]))
    torch.set_num_threads(2)
    check(alone, served.encode_images(images, sizes))


def check(expected: list[Tensor], actual: list[Tensor]) -> None:
    assert len(actual) == len(expected)
    for own, among in zip(expected, actual, strict=True):
        assert torch.equal(own, among)

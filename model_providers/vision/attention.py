"""Attention inside an image encoder: every token of an image sees every token of the same image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model_providers.kernels.library import Kernels


@dataclass(frozen=True)
class ImageLengths:
    """Tokens of each image (or tile) in a packed batch, class tokens included."""

    lengths: list[int]

    @property
    def uniform(self) -> int | None:
        """The common length, None when they differ."""
        return self.lengths[0] if len(set(self.lengths)) == 1 else None

    @cached_property
    def starts(self) -> Tensor:
        """(images + 1,) int32 on the CPU: where each begins, and where the last one ends."""
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32)


def attend_within_images(qkv: Tensor, images: ImageLengths, scale: float, kernels: Kernels | None) -> Tensor:
    """qkv: (T, heads, 3, head_dim), packed, per head its query, key and value -> (T, heads * head_dim).

    No mask inside an image. With kernels an image's result is its own alone, to the last bit.
    """
    if kernels is not None:
        return kernels.attend_images(qkv.contiguous(), images.starts, scale)
    query, key, value = qkv.unbind(2)
    if images.uniform is not None:
        return _attend(query, key, value, images.uniform, scale)
    parts = (torch.split(tensor, images.lengths) for tensor in (query, key, value))
    return torch.cat([_attend(q, k, v, q.shape[0], scale) for q, k, v in zip(*parts, strict=True)])


def _attend(query: Tensor, key: Tensor, value: Tensor, length: int, scale: float) -> Tensor:
    """Images of one length: (images * length, heads, head_dim) each."""
    q, k, v = (tensor.view(-1, length, *tensor.shape[1:]).transpose(1, 2) for tensor in (query, key, value))
    return scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(0, 1).flatten(1)

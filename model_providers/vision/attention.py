"""Attention inside an image encoder: every token of an image sees every token of the same image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class ImageLengths:
    """Tokens of each image (or tile) in a packed batch, class tokens included."""

    lengths: list[int]

    @property
    def uniform(self) -> int | None:
        """The common length, None when they differ."""
        return self.lengths[0] if len(set(self.lengths)) == 1 else None


def attend_within_images(query: Tensor, key: Tensor, value: Tensor, images: ImageLengths, scale: float) -> Tensor:
    """query, key, value: (T, heads, head_dim), packed -> (T, heads * head_dim). No mask inside an image."""
    if images.uniform is not None:
        return _attend(query, key, value, images.uniform, scale)
    parts = (torch.split(tensor, images.lengths) for tensor in (query, key, value))
    return torch.cat([_attend(q, k, v, q.shape[0], scale) for q, k, v in zip(*parts, strict=True)])


def _attend(query: Tensor, key: Tensor, value: Tensor, length: int, scale: float) -> Tensor:
    """Images of one length: (images * length, heads, head_dim) each."""
    q, k, v = (tensor.view(-1, length, *tensor.shape[1:]).transpose(1, 2) for tensor in (query, key, value))
    return scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(0, 1).flatten(1)

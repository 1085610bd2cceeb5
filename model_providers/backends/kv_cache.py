"""The tensors behind the paged KV cache."""

from __future__ import annotations

import math
from enum import Enum, auto

import numpy as np
import torch
from torch import Tensor


class CacheLayout(Enum):
    """How the keys and values of a layer lie in memory; each attention backend says which it reads.

    HEAD_MAJOR: (num_blocks, kv_heads, block_size, head_dim), so that one head of one block is a piece of memory of its
    own. TRANSPOSED_KEYS: the same, but keys are (num_blocks, kv_heads, head_dim, block_size). TOKEN_MAJOR: (num_blocks,
    block_size, kv_heads, head_dim), what FlashAttention reads.
    """

    HEAD_MAJOR = auto()
    TRANSPOSED_KEYS = auto()
    TOKEN_MAJOR = auto()


class KVCache:
    """Keys and values of all layers on one rank: keys[layer], values[layer] as the layout says.

    All numbers are finite at all times, so that what a sequence has not written yet can be multiplied by a weight of 0.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        layout: CacheLayout = CacheLayout.HEAD_MAJOR,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = device
        self.layout = layout
        value_shape = (num_blocks, num_kv_heads, block_size, head_dim)
        if layout is CacheLayout.TOKEN_MAJOR:
            value_shape = (num_blocks, block_size, num_kv_heads, head_dim)
        key_shape = value_shape
        if layout is CacheLayout.TRANSPOSED_KEYS:
            key_shape = (num_blocks, num_kv_heads, head_dim, block_size)
        self.keys = [_zeros(key_shape, dtype, device) for _ in range(num_layers)]
        self.values = [_zeros(value_shape, dtype, device) for _ in range(num_layers)]

    @staticmethod
    def bytes_per_block(
        *, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes one block takes on one rank, keys and values of all layers together."""
        return 2 * num_layers * block_size * num_kv_heads * head_dim * dtype.itemsize

    def write(self, layer: int, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value, each (T, kv_heads, head_dim), at `rows` (T * kv_heads,), see `rows_of_slots`."""
        assert self.layout is not CacheLayout.TRANSPOSED_KEYS, "rows are of keys that are not transposed"
        for cached, new in ((self.keys[layer], key), (self.values[layer], value)):
            # A sequence that comes to NaN fails alone: it must not leave it to whoever gets its blocks next.
            finite = new.reshape(-1, self.head_dim).nan_to_num(0.0)
            cached.view(-1, self.head_dim).index_copy_(0, rows, finite)

    def rows_of_slots(self, slots: Tensor) -> Tensor:
        """(T,) slots -> (T * kv_heads,) rows of a layer's keys seen as (blocks * kv_heads * block_size, head_dim)."""
        heads = torch.arange(self.num_kv_heads, device=slots.device)
        if self.layout is CacheLayout.TOKEN_MAJOR:
            return (slots[:, None] * self.num_kv_heads + heads).flatten()
        blocks = (slots // self.block_size)[:, None] * self.num_kv_heads + heads
        return (blocks * self.block_size + (slots % self.block_size)[:, None]).flatten()

    def pieces_of_blocks(self, blocks: Tensor) -> Tensor:
        """(rows, width) block numbers -> (rows * kv_heads * width,) numbers of (block, head) pieces, in that order."""
        assert self.layout is CacheLayout.HEAD_MAJOR, "only there a head of a block is one piece"
        heads = torch.arange(self.num_kv_heads, device=blocks.device)
        return (blocks[:, None, :] * self.num_kv_heads + heads[:, None]).flatten()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU the operating system hands the zeros out as they are first touched, so that an idle cache is free."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)

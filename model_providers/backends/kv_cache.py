"""The tensors behind the paged KV cache."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


class KVCache:
    """Keys and values of all layers on one rank.

    keys[layer], values[layer]: (num_blocks, kv_heads, block_size, head_dim), so that one head of one block is a piece
    of memory of its own. With transposed_keys, keys are (num_blocks, kv_heads, head_dim, block_size) instead. All
    numbers are finite at all times, so that what a sequence has not written yet can be multiplied by a weight of 0.
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
        transposed_keys: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = device
        self.transposed_keys = transposed_keys
        per_token, transposed = (block_size, head_dim), (head_dim, block_size)
        key_shape = (num_blocks, num_kv_heads, *(transposed if transposed_keys else per_token))
        self.keys = [_zeros(key_shape, dtype, device) for _ in range(num_layers)]
        self.values = [_zeros((num_blocks, num_kv_heads, *per_token), dtype, device) for _ in range(num_layers)]

    @staticmethod
    def bytes_per_block(
        *, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes one block takes on one rank, keys and values of all layers together."""
        return 2 * num_layers * block_size * num_kv_heads * head_dim * dtype.itemsize

    def write(self, layer: int, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value, each (T, kv_heads, head_dim), at `rows` (T * kv_heads,), see `rows_of_slots`."""
        assert not self.transposed_keys, "rows are of keys that are not transposed"
        for cached, new in ((self.keys[layer], key), (self.values[layer], value)):
            # A sequence that comes to NaN fails alone: it must not leave it to whoever gets its blocks next.
            finite = new.reshape(-1, self.head_dim).nan_to_num(0.0)
            cached.view(-1, self.head_dim).index_copy_(0, rows, finite)

    def rows_of_slots(self, slots: Tensor) -> Tensor:
        """(T,) slots -> (T * kv_heads,) rows of a layer's keys seen as (blocks * kv_heads * block_size, head_dim)."""
        heads = torch.arange(self.num_kv_heads, device=slots.device)
        blocks = (slots // self.block_size)[:, None] * self.num_kv_heads + heads
        return (blocks * self.block_size + (slots % self.block_size)[:, None]).flatten()

    def pieces_of_blocks(self, blocks: Tensor) -> Tensor:
        """(rows, width) block numbers -> (rows * kv_heads * width,) numbers of (block, head) pieces, in that order."""
        heads = torch.arange(self.num_kv_heads, device=blocks.device)
        return (blocks[:, None, :] * self.num_kv_heads + heads[:, None]).flatten()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU the operating system hands the zeros out as they are first touched, so that an idle cache is free."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)

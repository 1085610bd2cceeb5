"""The tensors behind the paged KV cache."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values of all layers on one rank.

    keys[layer], values[layer]: (num_slots, kv_heads, head_dim), where num_slots = num_blocks * block_size. Memory is
    reserved but not touched here, so the operating system hands it out as blocks are first written.
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
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks * block_size, num_kv_heads, head_dim)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        # A padded decode row reads slot 0 and multiplies what it finds by a weight of 0: that must not be NaN.
        for tensor in (*self.keys, *self.values):
            tensor[:block_size].zero_()

    @staticmethod
    def bytes_per_block(
        *, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes one block takes on one rank, keys and values of all layers together."""
        return 2 * num_layers * block_size * num_kv_heads * head_dim * dtype.itemsize

    def write(self, layer: int, slot_mapping: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value, each (T, kv_heads, head_dim), at slot_mapping (T,)."""
        self.keys[layer].index_copy_(0, slot_mapping, key)
        self.values[layer].index_copy_(0, slot_mapping, value)

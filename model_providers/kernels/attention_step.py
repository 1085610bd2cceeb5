"""One step's attention as the kernels read it: `AttentionStep` in source/attention.h, field by field."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ITEM_FIELDS = 7


class AttentionStep(ctypes.Structure):
    """Keeps alive what its pointers point to."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in (
            "query_starts", "kv_lengths", "block_tables", "slots", "positions", "cosines", "sines", "items", "partials",
        )),
        *((name, ctypes.c_int32) for name in (
            "num_sequences", "num_tokens", "table_width", "num_kv_heads", "group", "head_dim", "block_size",
            "rotary_dim", "interleaved", "num_items", "num_partials",
        )),
        ("scale", ctypes.c_float),
    ]  # fmt: skip

    def __init__(
        self,
        *,
        query_starts: NDArray[np.int32],
        kv_lengths: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        slots: Tensor,
        positions: Tensor,
        cosines: Tensor | None,
        sines: Tensor | None,
        num_kv_heads: int,
        group: int,
        head_dim: int,
        block_size: int,
        interleaved: bool,
        scale: float,
    ) -> None:
        """query_starts (S + 1,), kv_lengths (S,), block_tables (S, width), slots and positions (T,) int64.

        cosines, sines: (positions, rotary_dim / 2) float32, None without rotary embedding. group: query heads per KV
        head. All arrays dense.
        """
        super().__init__(
            num_sequences=len(kv_lengths),
            num_tokens=len(slots),
            table_width=block_tables.shape[1],
            num_kv_heads=num_kv_heads,
            group=group,
            head_dim=head_dim,
            block_size=block_size,
            rotary_dim=0 if cosines is None else 2 * cosines.shape[1],
            interleaved=interleaved,
            scale=scale,
        )
        self._kept: list[Any] = []
        for name, array in (("query_starts", query_starts), ("kv_lengths", kv_lengths), ("block_tables", block_tables)):
            self._point(name, array, array.ctypes.data)
        for name, tensor in (("slots", slots), ("positions", positions), ("cosines", cosines), ("sines", sines)):
            if tensor is not None:
                self._point(name, tensor, tensor.data_ptr())

    def allocate(self, *, num_items: int, num_partials: int) -> None:
        """Make room for the plan."""
        items = np.empty((num_items, _ITEM_FIELDS), dtype=np.int32)
        partials = torch.empty(num_partials * self.num_kv_heads * self.group * (self.head_dim + 2))
        self._point("items", items, items.ctypes.data)
        self._point("partials", partials, partials.data_ptr())

    def _point(self, name: str, owner: Any, address: int) -> None:
        setattr(self, name, address)
        self._kept.append(owner)

"""Moves a step's arrays to the device. To a GPU all of them go in one copy, for which the host does not wait."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Arrays = Items[NDArray[Any]]

_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}
_ALIGNMENT = 16  # bytes; the widest access of a kernel


class Transfer(Protocol):
    def __call__(self, arrays: Arrays) -> list[Tensor]:
        """Arrays of int32 or int64 -> tensors on the device, of the same shapes, in the same order."""
        ...


def transfer_to(device: torch.device) -> Transfer:
    """On a CPU nothing is copied: the tensors are the arrays."""
    return PackedTransfer(device) if device.type == "cuda" else lambda arrays: list(map(torch.from_numpy, arrays))


@dataclass(frozen=True)
class PackedLayout:
    """Where arrays lie when they are packed into one buffer of bytes; the same for all arrays of the same shapes."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    offsets: tuple[int, ...]
    num_bytes: int

    @classmethod
    def of(cls, arrays: Arrays) -> PackedLayout:
        ends = np.cumsum([-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]).tolist()
        shapes, dtypes = tuple(array.shape for array in arrays), tuple(array.dtype for array in arrays)
        return cls(shapes, dtypes, (0, *ends[:-1]), ends[-1])

    def pack(self, arrays: Arrays, buffer: NDArray[np.uint8]) -> None:
        """buffer: at least num_bytes long."""
        for array, offset in zip(arrays, self.offsets, strict=True):
            buffer[offset : offset + array.nbytes].view(array.dtype)[:] = array.reshape(-1)

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The arrays in a buffer of bytes on any device."""
        return [
            buffer[offset : offset + int(np.prod(shape)) * dtype.itemsize].view(_DTYPES[dtype]).view(shape)
            for shape, dtype, offset in zip(self.shapes, self.dtypes, self.offsets, strict=True)
        ]


class _HostBuffer:
    """Host memory that outlives its copies to the device: it is written again only once the last of them is done."""

    def __init__(self, *, pinned: bool) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def reserve(self, num_bytes: int) -> NDArray[np.uint8]:
        """The memory, for the caller to write."""
        if self._copied is not None:
            self._copied.synchronize()
        if len(self._bytes) < num_bytes:
            self._bytes = torch.empty(2 * num_bytes, dtype=torch.uint8, pin_memory=self._copied is not None)
        array: NDArray[np.uint8] = self._bytes.numpy()
        return array

    def copy_to(self, destination: Tensor) -> None:
        destination.copy_(self._bytes[: len(destination)], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class PackedTransfer:
    """Packs a step's arrays into pinned memory and copies them at once, behind what the device still has to do.

    Two host buffers take turns, so that the next step can be packed while the last one's copy waits for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = cycle([_HostBuffer(pinned=device.type == "cuda") for _ in range(2)])

    def __call__(self, arrays: Arrays) -> list[Tensor]:
        """See `Transfer`."""
        layout = PackedLayout.of(arrays)
        packed = self.allocate(layout)
        self.copy(arrays, layout, packed)
        return layout.views(packed)

    def allocate(self, layout: PackedLayout) -> Tensor:
        """Memory on the device for arrays of this layout."""
        return torch.empty(layout.num_bytes, dtype=torch.uint8, device=self._device)

    def copy(self, arrays: Arrays, layout: PackedLayout, packed: Tensor) -> None:
        """Replace what `packed` holds, once the device has done what it was given before."""
        buffer = next(self._buffers)
        layout.pack(arrays, buffer.reserve(layout.num_bytes))
        buffer.copy_to(packed)

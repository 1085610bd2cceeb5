"""Reads regions of the tensors in a torch_dist checkpoint, without a process group and without executing anything.

The layout is torch.distributed.checkpoint's: `.metadata` says into which chunks each global tensor was cut and where
in which file each chunk lies; a chunk is what torch.save wrote. Megatron's dist_checkpointing would read the same
files, but through an unpickler that runs what it finds.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata

from model_providers.checkpoint.secure import read_dcp_metadata
from model_providers.errors import CheckpointError


class TensorReader:
    """Random access to the tensors of one torch_dist directory; a context manager that keeps its files open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        metadata = read_dcp_metadata(directory)
        self._storage = metadata.storage_data
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._chunks: dict[str, list[ChunkStorageMetadata]] = {}
        for key, entry in metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                self.shapes[key] = tuple(entry.size)
                self._chunks[key] = entry.chunks
        self._files: dict[str, BinaryIO] = {}

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def read_into(self, key: str, offset: tuple[int, ...], out: Tensor) -> None:
        """Fill `out` with the region of tensor `key` that begins at `offset` and has out's shape, converting its dtype.

        Raises CheckpointError when the chunks on disk do not cover the region.
        """
        covered = 0
        for chunk in self._chunks[key]:
            overlap = _overlap(offset, tuple(out.shape), tuple(chunk.offsets), tuple(chunk.sizes))
            if overlap is None:
                continue
            stored = self._read_chunk(key, chunk)
            target = out[tuple(slice(low - o, high - o) for (low, high), o in zip(overlap, offset, strict=True))]
            origin = chunk.offsets
            target.copy_(
                stored[tuple(slice(low - o, high - o) for (low, high), o in zip(overlap, origin, strict=True))]
            )
            covered += target.numel()
        if covered != out.numel():
            raise CheckpointError(
                self._directory, f"holds {covered} of the {out.numel()} numbers of {key!r} that this rank needs"
            )

    def _read_chunk(self, key: str, chunk: ChunkStorageMetadata) -> Tensor:
        info = self._storage[MetadataIndex(key, chunk.offsets)]
        path = self._directory / info.relative_path
        data = self._read_bytes(path, info.relative_path, info.offset, info.length)
        try:
            stored = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged archive raises almost any exception
            raise CheckpointError(path, f"the data of {key!r} at offset {info.offset} is damaged") from error
        if not isinstance(stored, Tensor) or tuple(stored.shape) != tuple(chunk.sizes):
            raise CheckpointError(path, f"the data of {key!r} at offset {info.offset} is not the tensor it should be")
        return stored.detach()

    def _read_bytes(self, path: Path, name: str, offset: int, length: int) -> bytes:
        if name not in self._files:
            if not path.resolve().is_relative_to(self._directory.resolve()):
                raise CheckpointError(self._directory, f"places data outside itself, in {name!r}")
            try:
                self._files[name] = path.open("rb")
            except OSError as error:
                raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
        self._files[name].seek(offset)
        data = self._files[name].read(length)
        if len(data) < length:
            raise CheckpointError(path, f"is cut short: {length} bytes expected at offset {offset}, {len(data)} found")
        return data


def _overlap(
    offset: tuple[int, ...], shape: tuple[int, ...], chunk_offset: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> list[tuple[int, int]] | None:
    """The common box of two boxes as (low, high) per axis, None when they are disjoint."""
    box = [(max(a, b), min(a + n, b + m)) for a, n, b, m in zip(offset, shape, chunk_offset, chunk_shape, strict=True)]
    return box if all(low < high for low, high in box) else None

"""Reads a torch_dist checkpoint's `.metadata`, a plain pickle, through an unpickler that admits names one by one.

What is admitted: the data classes that torch.distributed.checkpoint writes there, torch dtypes and layouts, sizes,
sets, ordered dictionaries and paths. None of them has an effect when called. `builtins.getattr`, which Python 3.11
writes for members of enumerations, is replaced by a look-up that works on enumerations alone.
"""

from __future__ import annotations

import collections
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor import metadata as sharded_tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata

from model_providers.checkpoint.secure_records import enum_member, inert_class
from model_providers.errors import CheckpointError

METADATA_FILE = ".metadata"


class _McoreMetadata(Metadata):
    """megatron-core up to 0.15 wrote a subclass of this name, with a dictionary `mcore_data` that we do not read."""


_DCP_CLASSES: tuple[type, ...] = (
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.Metadata,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    metadata.TensorProperties,
    metadata.TensorStorageMetadata,
    metadata._MEM_FORMAT_ENCODING,
    filesystem._StorageInfo,
    filesystem._StoragePrefix,
    # torch before 2.3 kept these two here
    sharded_tensor.MEM_FORMAT_ENCODING,
    sharded_tensor.TensorProperties,
)
_PATH_CLASSES = ("Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath")
_UNUSED_CLASSES = {
    "megatron.core.dist_checkpointing.mapping": ("LocalNonpersistentObject", "ShardedObject", "ShardedTensor"),
    "megatron.core.dist_checkpointing.strategies.torch": ("MCoreSavePlan",),
    # what each rank planned to write; of no use to a reader
    "torch.distributed.checkpoint.planner": (
        "BytesIOWriteData",
        "SavePlan",
        "TensorWriteData",
        "WriteItem",
        "WriteItemType",
    ),
}


def _admitted() -> dict[tuple[str, str], Callable[..., Any]]:
    names: dict[tuple[str, str], Callable[..., Any]] = {(c.__module__, c.__qualname__): c for c in _DCP_CLASSES}
    names |= {("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"): _McoreMetadata}
    names |= {(m, n): inert_class(f"{m}.{n}") for m, classes in _UNUSED_CLASSES.items() for n in classes}
    # pathlib._local: Python 3.13 and later
    names |= {(module, name): PurePosixPath for module in ("pathlib", "pathlib._local") for name in _PATH_CLASSES}
    return names | {
        ("builtins", "getattr"): enum_member,
        ("builtins", "set"): set,
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch", "Size"): torch.Size,
        ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    }


class _MetadataUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BufferedIOBase) -> None:
        super().__init__(file)
        self._admitted = _admitted()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._admitted:
            return self._admitted[module, name]
        if module == "torch" and isinstance(constant := getattr(torch, name, None), torch.dtype | torch.layout):
            return constant
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no checkpoint needs; nothing of it was run")

    def persistent_load(self, _pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside the file")


@contextmanager
def _classes_unchanged() -> Iterator[None]:
    """A pickle can also set attributes, on admitted classes too: undo that, and refuse the file."""
    before = {cls: dict(vars(cls)) for cls in (*_DCP_CLASSES, _McoreMetadata)}
    try:
        yield
    finally:
        changed = [cls for cls, attributes in before.items() if dict(vars(cls)) != attributes]
        for cls in changed:
            for name in vars(cls).keys() - before[cls].keys():
                delattr(cls, name)
            for name, value in before[cls].items():
                if vars(cls)[name] is not value:
                    setattr(cls, name, value)
    if changed:
        raise pickle.UnpicklingError(f"it changes the class {changed[0].__qualname__}")


def read_dcp_metadata(directory: Path) -> Metadata:
    """The parsed `.metadata` of a torch_dist iteration directory.

    Raises CheckpointError when the file is missing, empty, cut short, or refers to anything but checkpoint metadata.
    """
    path = directory / METADATA_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
    if not data:
        raise CheckpointError(path, "is empty; the checkpoint was not written to its end")
    try:
        with _classes_unchanged():
            loaded = _MetadataUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a damaged pickle raises almost any exception
        raise CheckpointError(path, f"is damaged or not checkpoint metadata: {error}") from error
    if not isinstance(loaded, Metadata) or not isinstance(getattr(loaded, "state_dict_metadata", None), dict):
        raise CheckpointError(path, "holds no checkpoint metadata")
    return loaded

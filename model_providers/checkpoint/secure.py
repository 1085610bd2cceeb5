"""Reads a checkpoint's files without executing anything in them.

Objects are read by torch's weights-only unpickler under an allow-list of our own, which replaces, for the time of the
call, whatever other libraries have registered with torch. Every other class or function that a file names becomes an
inert record (see `secure_records`). A file that names anything in `os` or `sys` is refused whole, as torch does.
"""

from __future__ import annotations

import argparse
import io
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from model_providers.checkpoint.secure_metadata import METADATA_FILE, read_dcp_metadata
from model_providers.checkpoint.secure_records import EnumStandIn, InertRecord, enum_member, inert_class, is_inert
from model_providers.errors import CheckpointError

__all__ = ["InertRecord", "is_inert", "load_byte_object", "load_weights_only", "read_dcp_metadata"]

_ENUMERATIONS = {
    "megatron.core.enums": ("ModelType",),
    "megatron.core.transformer.enums": ("AttnBackend", "AttnMaskType", "CudaGraphModule", "CudaGraphScope"),
    "signal": ("Signals",),
}

# torch's unpickler never takes names from these, not even as stand-ins
_REFUSED_MODULES = frozenset({"nt", "os", "posix", "sys"})

_torch_allow_list = threading.Lock()


def _plain_dict(*_arguments: Any) -> dict[Any, Any]:
    """A defaultdict is read as a dict: its factory is a callable the file chose."""
    return {}


def _admitted() -> list[tuple[Callable[..., Any], str]]:
    """What may be built beyond torch's own tensors and containers: (callable, dotted name in the file)."""
    paths = [f"{module}.{name}" for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "PurePosixPath")]
    return [
        (argparse.Namespace, "argparse.Namespace"),
        (types.SimpleNamespace, "types.SimpleNamespace"),
        (enum_member, "builtins.getattr"),
        (_plain_dict, "collections.defaultdict"),
        *((PurePosixPath, path) for path in paths),
        *((EnumStandIn(module, name), f"{module}.{name}") for module, names in _ENUMERATIONS.items() for name in names),
    ]


@contextmanager
def _only(admitted: list[Any]) -> Iterator[None]:
    """torch keeps one allow-list per process; make it `admitted` for a while."""
    with _torch_allow_list:
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(admitted)
        try:
            yield
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def load_weights_only(source: Path | io.BytesIO, *, name: Path | str | None = None) -> Any:
    """What torch.save wrote to `source`, with inert records in place of unknown objects.

    A path is mapped into memory: tensors are not read until they are used. `name` is what an error calls the source,
    by default its path. Raises CheckpointError when it is missing, empty, cut short, damaged, or asks for a module that
    is always refused.
    """
    label = name or (source if isinstance(source, Path) else "object in memory")
    try:
        return _load(source)
    except OSError as error:
        raise CheckpointError(label, f"cannot be read ({error.strerror or error})") from error
    except Exception as error:  # a damaged pickle raises almost any exception
        raise CheckpointError(label, f"is damaged, or not a file that torch.save wrote: {_brief(error)}") from error


def _load(source: Path | io.BytesIO) -> Any:
    if isinstance(source, Path) and source.stat().st_size == 0:
        raise ValueError("it is empty")
    admitted: list[Any] = list(_admitted())
    with _only(admitted):
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(source)
        if refused := [origin for origin in unknown if origin.partition(".")[0] in _REFUSED_MODULES]:
            raise ValueError(f"it refers to {', '.join(refused)}, which no checkpoint needs; nothing of it was run")
        _rewind(source)
        torch.serialization.add_safe_globals([(inert_class(origin), origin) for origin in unknown])
        return torch.load(source, weights_only=True, map_location="cpu", mmap=isinstance(source, Path) or None)


def _rewind(source: Path | io.BytesIO) -> None:
    if isinstance(source, io.BytesIO):
        source.seek(0)


def _brief(error: Exception) -> str:
    """The first sentence of what is wrong: torch's messages go on to recommend loading unsafely."""
    text = str(error).rpartition("WeightsUnpickler error:")[2].strip()
    return text.partition("\n")[0].partition(". ")[0].strip() or type(error).__name__


def load_byte_object(directory: Path, metadata: Metadata, fqn: str) -> Any:
    """The object that a torch_dist checkpoint keeps under `fqn`.

    KeyError when the checkpoint has no such object; CheckpointError when its file is missing or damaged.
    """
    if not isinstance(metadata.state_dict_metadata[fqn], BytesStorageMetadata):
        raise KeyError(fqn)
    places = [info for index, info in (metadata.storage_data or {}).items() if index.fqn == fqn]
    if not places:
        raise CheckpointError(directory / METADATA_FILE, f"lists {fqn!r} but not where it is stored")
    path = directory / places[0].relative_path
    if not path.resolve().is_relative_to(directory.resolve()):
        raise CheckpointError(directory / METADATA_FILE, f"places {fqn!r} outside the checkpoint directory")
    data = _read_range(path, places[0].offset, places[0].length)
    return load_weights_only(io.BytesIO(data), name=f"{path} ({fqn})")


def _read_range(path: Path, offset: int, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
    if len(data) < length:
        raise CheckpointError(path, f"is cut short: {length} bytes expected at offset {offset}, {len(data)} found")
    return data

"""What a checkpoint says about itself: its training arguments, its format and its tensors' shapes.

No weights are read, no process group is made and nothing in the files is executed (see `secure`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata

from model_providers.checkpoint.peek_complete import check_ranks_complete, check_shards_complete
from model_providers.checkpoint.peek_locate import COMMON_FILE, RANK_FILE, detect_format, locate, rank_directories
from model_providers.checkpoint.secure import InertRecord, load_byte_object, load_weights_only, read_dcp_metadata
from model_providers.checkpoint.secure_metadata import METADATA_FILE
from model_providers.config import CheckpointFormat
from model_providers.errors import CheckpointError

_COMMON_OBJECT = "common_state"
# in megatron-core; in LLaVA the language model's name comes before it; in checkpoints before megatron-core the same
_EMBEDDINGS = "embedding.word_embeddings.weight"


class TensorInfo(NamedTuple):
    """One stored tensor. dtype: torch's name, `bfloat16`. bytes: of all its elements.

    part: the rank directory of a legacy checkpoint, where every rank has its own; empty in torch_dist.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    part: str = ""


@dataclass(frozen=True)
class CheckpointPeek:
    """One iteration of a checkpoint.

    path: the iteration directory. args_file: where the arguments are, or would be.
    args: the training arguments by argparse destination, as saved: enumerations and torch dtypes are themselves,
    objects of unknown classes are inert records. Empty when has_args is False (checkpoints before Megatron kept them).
    iteration: 0 for a release. checkpoint_version: Megatron's own, 0.0 where none is written.
    tensor_model_parallel_size, pipeline_model_parallel_size: of the run that saved it.
    vocabulary_rows: rows of the word embedding over all ranks, None when the checkpoint has no such tensor.
    """

    path: Path
    format: CheckpointFormat
    iteration: int
    args: Mapping[str, Any]
    has_args: bool
    args_file: Path
    checkpoint_version: float
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    vocabulary_rows: int | None
    tensors: tuple[TensorInfo, ...] = field(repr=False, default=())


def peek(load: Path, ckpt_step: int | None = None) -> CheckpointPeek:
    """Read what the checkpoint at `load` says about itself; see `peek_locate.locate` for what `load` may be.

    Raises CheckpointError naming the file that is missing, empty, cut short, damaged, hostile or of another kind.
    """
    where = locate(load, ckpt_step)
    kind = detect_format(where.path)
    found = _peek_torch_dist(where.path) if kind == "torch_dist" else _peek_legacy(where.path)
    args = _as_dict(found.state.get("args"), found.file)
    iteration = found.state.get("iteration") if where.iteration is None else where.iteration
    return CheckpointPeek(
        path=where.path,
        format=kind,
        iteration=iteration if isinstance(iteration, int) else 0,
        args=args or {},
        has_args=args is not None,
        args_file=found.file,
        checkpoint_version=_number(found.state.get("checkpoint_version")),
        tensor_model_parallel_size=found.ranks
        or _saved_size(args, "tensor_model_parallel_size", "model_parallel_size"),
        pipeline_model_parallel_size=_saved_size(args, "pipeline_model_parallel_size"),
        vocabulary_rows=_vocabulary_rows(found),
        tensors=found.tensors,
    )


def list_tensors(checkpoint: CheckpointPeek) -> list[TensorInfo]:
    """The stored tensors by name; of a legacy checkpoint the model's alone, one entry per rank."""
    if checkpoint.format == "torch_dist":
        return sorted(checkpoint.tensors)
    tensors: list[TensorInfo] = []
    for directory in rank_directories(checkpoint.path):
        tensors += _legacy_tensors(_load_rank(directory / RANK_FILE), directory.name)
    return sorted(tensors)


class _Found(NamedTuple):
    """ranks: of tensor parallelism, by files; 0 in torch_dist. tensors: of rank 0 alone where there are ranks."""

    state: Mapping[str, Any]
    file: Path
    tensors: tuple[TensorInfo, ...]
    ranks: int = 0


def _peek_torch_dist(directory: Path) -> _Found:
    metadata = read_dcp_metadata(directory)
    check_shards_complete(directory, metadata)
    state, file = _common_state(directory, metadata)
    return _Found(state, file, tuple(_torch_dist_tensors(metadata)))


def _common_state(directory: Path, metadata: Metadata) -> tuple[Mapping[str, Any], Path]:
    """Older versions keep it in a file of its own, newer ones as an object among the shards."""
    common = directory / COMMON_FILE
    if common.exists():
        return _require_mapping(load_weights_only(common), common), common
    names = [
        name
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, BytesStorageMetadata) and name.partition("/")[0] == _COMMON_OBJECT
    ]
    if not names:
        raise CheckpointError(
            directory / METADATA_FILE,
            f"lists no {_COMMON_OBJECT!r} and there is no {COMMON_FILE} beside it: not a checkpoint of Megatron-LM's"
            " torch_dist format",
        )
    loaded = load_byte_object(directory, metadata, names[0])
    if isinstance(loaded, list) and len(loaded) == 1:  # megatron's ShardedObject wraps the object in a list
        loaded = loaded[0]
    return _require_mapping(loaded, directory), directory


def _torch_dist_tensors(metadata: Metadata) -> Iterator[TensorInfo]:
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield _tensor_info(name, tuple(entry.size), entry.properties.dtype)


def _peek_legacy(directory: Path) -> _Found:
    ranks = rank_directories(directory)
    check_ranks_complete(ranks)
    first = ranks[0] / RANK_FILE
    state = _load_rank(first)
    tensors = list(_legacy_tensors(state, ranks[0].name))
    return _Found(state, first, tuple(tensors), len({directory.name.split("_")[2] for directory in ranks}))


def _load_rank(path: Path) -> Mapping[str, Any]:
    return _require_mapping(load_weights_only(path), path)


def _legacy_tensors(state: Mapping[str, Any], part: str) -> Iterator[TensorInfo]:
    for key, value in state.items():
        if isinstance(key, str) and key.startswith("model") and isinstance(value, Mapping):
            for name, tensor in _flat_tensors(value, ""):
                yield _tensor_info(name, tuple(tensor.shape), tensor.dtype, part)


def _flat_tensors(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Checkpoints before megatron-core nest dictionaries: `language_model` -> `embedding` -> ..."""
    for key, value in tree.items():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping):
            yield from _flat_tensors(value, f"{prefix}{key}.")


def _tensor_info(name: str, shape: tuple[int, ...], dtype: torch.dtype, part: str = "") -> TensorInfo:
    size = torch.Size(shape).numel() * dtype.itemsize
    return TensorInfo(name, shape, str(dtype).removeprefix("torch."), size, part)


def _vocabulary_rows(found: _Found) -> int | None:
    """torch_dist lists whole tensors; legacy ranks hold equal parts."""
    rows = (
        t.shape[0] * max(1, found.ranks) for t in found.tensors if t.name.endswith(_EMBEDDINGS) and len(t.shape) == 2
    )
    return next(rows, None)


def _as_dict(args: Any, file: Path) -> dict[str, Any] | None:
    if args is None:
        return None
    if isinstance(args, Namespace | SimpleNamespace):
        return dict(vars(args))
    if isinstance(args, InertRecord):
        args = args.state
    if isinstance(args, dict) and all(isinstance(name, str) for name in args):
        return dict(args)
    raise CheckpointError(file, "holds `args` that are not a namespace of named values")


def _require_mapping(state: Any, file: Path) -> Mapping[str, Any]:
    if not isinstance(state, Mapping):
        raise CheckpointError(file, f"holds a {type(state).__name__} instead of a checkpoint's dictionary")
    return state


def _saved_size(args: Mapping[str, Any] | None, *names: str) -> int:
    values = ((args or {}).get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), 1)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0

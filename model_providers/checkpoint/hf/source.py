"""A Hugging Face model directory, read tensor by tensor, with an account of what was read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from model_providers.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class TensorSource(Protocol):
    """What a family reads a model from: a directory's tensors, or those of one part of a larger model.

    config: of the model or the part.
    """

    directory: Path
    config: Any

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str) -> torch.Tensor:
        """Raises CheckpointError for a tensor that is not there, or not of floating-point numbers."""
        ...


class HfSource:
    """The safetensors files of one directory, and its configuration; a context manager, for the files stay mapped.

    config: as `read_config` gives it. Raises CheckpointError, naming the file, for anything missing or damaged.
    """

    def __init__(self, directory: Path, config: Any) -> None:
        self.directory = directory
        self.config = config
        self._files = ExitStack()
        self._file_of: dict[str, Any] = {}  # tensor name -> open safetensors file
        self._taken: set[str] = set()

    def __enter__(self) -> Self:
        try:
            for path in self._weight_files():
                opened = self._files.enter_context(_open(path))
                self._file_of.update(dict.fromkeys(opened.keys(), opened))
        except BaseException:
            self._files.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._files.close()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def take(self, name: str) -> torch.Tensor:
        """Read one tensor and count it as used."""
        if name not in self._file_of:
            raise CheckpointError(self.directory, f"the weights have no tensor {name}")
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        if not tensor.is_floating_point():
            raise CheckpointError(self.directory, f"{name} holds {tensor.dtype}: quantised weights cannot be imported")
        self._taken.add(name)
        return tensor

    def unused(self) -> list[str]:
        """Names never taken, sorted."""
        return sorted(self._file_of.keys() - self._taken)

    @property
    def num_tensors(self) -> int:
        return len(self._file_of)

    @property
    def num_taken(self) -> int:
        return len(self._taken)

    def float_dtypes(self) -> set[torch.dtype]:
        """Number formats of the floating-point tensors, from the files' headers."""
        names = {file.get_slice(name).get_dtype() for name, file in self._file_of.items()}
        return {_FLOAT_DTYPES[name] for name in names if name in _FLOAT_DTYPES}

    def _weight_files(self) -> Iterable[Path]:
        index = self.directory / _INDEX
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CheckpointError(index, f"not a safetensors index: {error!r}") from error
            return [self.directory / Path(name).name for name in names]  # never outside the directory
        if (self.directory / _SINGLE).is_file():
            return [self.directory / _SINGLE]
        found = sorted(path.name for path in self.directory.glob("*.bin"))
        hint = f"; convert {', '.join(found)} to safetensors first" if found else ""
        raise CheckpointError(self.directory, f"has neither {_SINGLE} nor {_INDEX}{hint}")


_FLOAT_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def _open(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(path, "is listed in the index but does not exist")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(path, f"cannot be read as safetensors: {error}") from error


def read_config(directory: Path) -> Any:
    """The directory's config.json as transformers' configuration object, without running code from it."""
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(directory, "is not a Hugging Face model directory: it has no config.json")
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    # An unknown model_type, broken JSON, a field of the wrong type.
    except (ValueError, OSError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        raise CheckpointError(path, f"transformers cannot read it: {error}") from error

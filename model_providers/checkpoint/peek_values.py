"""Argument values as JSON types, and back to what Megatron's functions want.

An enumeration's member becomes its name (`flash`), a torch dtype its name (`bfloat16`), a path its text, a tuple or set
a list, a callable its dotted name, an inert record its description. A number that JSON does not know becomes its text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import torch

from model_providers.checkpoint.secure import is_inert

# Destinations whose value is a torch dtype, where the document has the dtype's name.
DTYPE_ARGUMENTS = ("params_dtype",)
# Destinations whose value is a member of an enumeration of megatron.core.transformer.enums.
_ENUM_ARGUMENTS = {"attention_backend": "AttnBackend", "inference_cuda_graph_scope": "InferenceCudaGraphScope"}
_ENUM_LISTS = {"cuda_graph_modules": "CudaGraphModule"}


def json_value(value: Any) -> Any:
    """`value` in JSON types; total, and the identity on JSON types except NaN and infinities."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((json_value(item) for item in value), key=str)
    if callable(value) and not is_inert(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return str(value)


def megatron_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a resolved document's values with dtypes and enumerations in place of their names."""
    from megatron.core.transformer import enums

    restored = dict(values)
    for name in DTYPE_ARGUMENTS:
        if isinstance(restored.get(name), str):
            restored[name] = getattr(torch, restored[name])
    for name, enumeration in _ENUM_ARGUMENTS.items():
        if isinstance(restored.get(name), str):
            restored[name] = getattr(enums, enumeration)[restored[name]]
    for name, enumeration in _ENUM_LISTS.items():
        if isinstance(restored.get(name), list):
            restored[name] = [getattr(enums, enumeration)[member] for member in restored[name]]
    return restored

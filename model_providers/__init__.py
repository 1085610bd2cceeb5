"""Megatron-core models, built from resolved arguments and ready to serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_providers.registry import get_model

__all__ = ["get_model"]


def __getattr__(name: str) -> object:
    # Resolved on first use: importing this package must not import torch (the HTTP process imports its errors).
    if name == "get_model":
        from model_providers.registry import get_model

        return get_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Megatron without torch's compiler, whose import takes longer than torch's and Megatron's own together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch


def import_megatron() -> None:
    """Import megatron.core; a program's main calls it before anything else does.

    Megatron decorates some fused functions by `torch.compile` where they are defined (megatron.core.jit), and the
    decorator alone imports torch's compiler: 800 modules, seconds, and 150 MB in each process. None of these functions
    runs here, for the layers that serve are this project's own. So while Megatron is imported, the decorator leaves a
    function as it is; afterwards it is torch's again.
    """
    with patch("torch.compile", _leave_as_it_is):
        import megatron.core  # noqa: F401


def _leave_as_it_is(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    return (lambda decorated: decorated) if function is None else function

"""Quiet for command lines: what upstream packages announce about things that are not used here."""

from __future__ import annotations

import logging
import warnings


def silence_upstream_notices() -> None:
    """For the whole process, so only a program's main calls it, first thing: before torch and Megatron are imported."""
    # Megatron: Transformer Engine and apex are not installed; GPTModel and synchronous saving are deprecated.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.")
    warnings.filterwarnings("ignore", category=SyntaxWarning)  # escapes in its docstrings, when compiled the first time
    logging.getLogger("megatron").setLevel(logging.ERROR)
    # torch: a CUDA toolkit without a GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)

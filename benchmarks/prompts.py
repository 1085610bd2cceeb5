"""The checkpoint's tokenizer, for making prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.errors import SetupError
from server.config import ResolvedDocument
from server.errors import ConfigurationError
from server.frontend.tokenizer import PromptTokenizer


def encoder_of(document: ResolvedDocument) -> Callable[[str], list[int]]:
    """Text to token ids, as the served model's tokenizer makes them. Raises SetupError."""
    try:
        return PromptTokenizer.load(Path(document.values["tokenizer_model"])).encode
    except ConfigurationError as error:
        raise SetupError(str(error)) from error

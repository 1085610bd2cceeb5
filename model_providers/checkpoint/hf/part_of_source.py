"""One part of a vision-language model's directory, under the names that the part has as a model of its own."""

from __future__ import annotations

from typing import Any

import torch

from model_providers.checkpoint.hf.source import TensorSource


class PartOfSource:
    """prefixes: of the part's names -> of the directory's; the first that applies counts. A `TensorSource`."""

    def __init__(self, whole: TensorSource, config: Any, prefixes: dict[str, str]) -> None:
        self.directory = whole.directory
        self.config = config
        self._whole = whole
        self._prefixes = prefixes

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self._whole

    def take(self, name: str) -> torch.Tensor:
        return self._whole.take(self._stored(name))

    def _stored(self, name: str) -> str:
        for own, stored in self._prefixes.items():
            if name.startswith(own):
                return stored + name.removeprefix(own)
        return name

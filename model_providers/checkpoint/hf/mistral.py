"""Mistral: Llama, with a sliding window that must not be in force."""

from __future__ import annotations

from typing import Any

from model_providers.checkpoint.hf.family import require
from model_providers.checkpoint.hf.llama import Llama
from model_providers.errors import UnsupportedModelError


class Mistral(Llama):
    def check(self, config: Any) -> None:
        require(config, "hidden_act", "silu")
        window = config.sliding_window
        if window is not None and window < config.max_position_embeddings:
            raise UnsupportedModelError(
                "sliding_window",
                f"attention limited to the last {window} tokens is not supported; set max_position_embeddings to "
                f"{window} in config.json to import the model for sequences that fit in the window",
            )

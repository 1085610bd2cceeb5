"""Which module builds which kind of model; imported only when that kind is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from model_providers.config import ModelConfig
from model_providers.errors import UnsupportedModelError

if TYPE_CHECKING:
    from model_providers.gpt import ServingGPTModel

_PROVIDERS = {False: "model_providers.gpt"}


def get_model(is_vlm: bool, config: ModelConfig) -> ServingGPTModel:
    """Build and load the model on this rank, ready to serve. Megatron's process groups must exist.

    Raises UnsupportedModelError for a kind without a provider, CheckpointError for weights that do not fit.
    """
    if is_vlm not in _PROVIDERS:
        raise UnsupportedModelError("language_model_type", "vision-language models cannot be served yet")
    provider = import_module(_PROVIDERS[is_vlm])
    model: ServingGPTModel = provider.build(config)
    return model

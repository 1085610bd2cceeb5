"""Which module builds which kind of model; imported only when that kind is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from model_providers.config import ModelConfig

if TYPE_CHECKING:
    from model_providers.gpt import ServingGPTModel
    from model_providers.llava import ServingLLaVAModel

    ServingModel = ServingGPTModel | ServingLLaVAModel

_PROVIDERS = {False: "model_providers.gpt", True: "model_providers.llava"}


def get_model(is_vlm: bool, config: ModelConfig) -> ServingModel:
    """Build and load the model on this rank, ready to serve. Megatron's process groups must exist.

    Raises UnsupportedModelError naming an argument that cannot be met, CheckpointError for weights that do not fit.
    """
    provider = import_module(_PROVIDERS[is_vlm])
    model: ServingModel = provider.build(config)
    return model

"""The projection from image tokens to the language model's width."""

from __future__ import annotations

from typing import Any, cast

import torch
from megatron.core.models.vision.multimodal_projector import MultimodalProjector
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from model_providers.backends.activation import Activation
from model_providers.backends.linear import ServingColumnParallelLinear, ServingRowParallelLinear
from model_providers.config import ModelConfig
from model_providers.kernels.library import Kernels, kernels_for
from model_providers.vision.activation import activation_for
from model_providers.vision.projection_settings import ProjectionSettings


class NormedColumnParallelLinear(ServingColumnParallelLinear):
    """A norm and the linear layer after it, with the parameter names of Transformer Engine's fused layer."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **options: Any) -> None:
        super().__init__(input_size, output_size, config=config, **options)
        self.layer_norm_weight = nn.Parameter(torch.empty(input_size, dtype=config.params_dtype))
        has_bias = config.normalization == "LayerNorm"
        self.layer_norm_bias = nn.Parameter(torch.empty(input_size, dtype=config.params_dtype)) if has_bias else None
        self.kernels: Kernels | None = None

    def apply(self, x: Tensor) -> Tensor:
        """(T, in) -> (T, out / tensor_parallel_size), normalised first."""
        shape, eps = (x.shape[-1],), self.config.layernorm_epsilon
        if self.kernels is not None:
            normed = self.kernels.norm(x.contiguous(), self.layer_norm_weight, self.layer_norm_bias, eps)
            return super().apply(normed)
        if self.layer_norm_bias is None:
            return super().apply(rms_norm(x, shape, self.layer_norm_weight, eps))
        return super().apply(layer_norm(x, shape, self.layer_norm_weight, self.layer_norm_bias, eps))


class ServingMultimodalProjector(MultimodalProjector):  # type: ignore[misc]
    """MultimodalProjector for serving: same parameters and keys; `project` replaces `forward`."""

    settings: ProjectionSettings
    activation: Activation

    def prepare_for_serving(self, config: ModelConfig) -> None:
        """Choose the operators, beside what `prepare_modules` does."""
        kernels = kernels_for(config.kernels, config.dtype, config.device)
        self.activation = activation_for(self.settings.activation, kernels)
        for module in self.modules():
            if isinstance(module, NormedColumnParallelLinear):
                module.kernels = kernels

    def project(self, tokens: Tensor) -> Tensor:
        """(T, encoder's output size) -> (T, language hidden), equal on all ranks."""
        if self.settings.kind == "affine":
            return cast(Tensor, self.encoder.apply_gathered(tokens))
        return cast(Tensor, self.encoder.linear_fc2.apply(self.activation(self.encoder.linear_fc1.apply(tokens))))


def build_projection(
    config: TransformerConfig, settings: ProjectionSettings, input_size: int, pg_collection: Any
) -> ServingMultimodalProjector:
    """Without weights, on the device that is current."""
    first = ServingColumnParallelLinear if settings.normalization is None else NormedColumnParallelLinear
    model = ServingMultimodalProjector(
        config,
        MLPSubmodules(linear_fc1=first, linear_fc2=ServingRowParallelLinear),
        settings.kind,
        input_size,
        tp_group=pg_collection.tp,
    )
    model.settings = settings
    model.activation = activation_for(settings.activation, kernels=None)
    return model

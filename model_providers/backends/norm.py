"""LayerNorm and RMSNorm with Megatron's parameter names and options."""

from __future__ import annotations

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from model_providers.kernels.decoder_layer import Norm
from model_providers.kernels.library import Kernels


class ServingNorm(nn.Module):
    """Normalisation over the last dimension, as config.normalization says; built by the layer spec.

    With layernorm_zero_centered_gamma the stored weight is the deviation from one (Megatron's apply_layernorm_1p).
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))
        self.bias: nn.Parameter | None = None
        if config.normalization == "LayerNorm":
            self.bias = nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))
        self.eps = eps
        self.zero_centered = bool(config.layernorm_zero_centered_gamma)
        self._scale: Tensor | None = None
        self._kernels: Kernels | None = None

    def prepare_for_serving(self, kernels: Kernels | None) -> None:
        """Compute once what the weights imply; called after loading."""
        self._scale = self._current_scale().detach()
        self._kernels = kernels

    @property
    def has_kernel(self) -> bool:
        """Whether a kernel computes it."""
        return self._kernels is not None

    def pointers(self) -> Norm:
        """As the kernels read it; valid while this module lives. Prepared."""
        assert self._scale is not None, "prepared"
        return Norm.of(self._scale, self.bias, self.eps)

    def _current_scale(self) -> Tensor:
        return self.weight + 1 if self.zero_centered else self.weight

    def forward(self, hidden: Tensor) -> Tensor:
        scale = self._current_scale() if self._scale is None else self._scale
        if self._kernels is not None and _served(hidden):
            return self._kernels.norm(hidden, scale, self.bias, self.eps)
        shape = (hidden.shape[-1],)
        if self.bias is None:
            return rms_norm(hidden, shape, scale, self.eps)
        return layer_norm(hidden, shape, scale, self.bias, self.eps)

    def add(self, residual: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """(residual + update, its normalisation), between two halves of a layer."""
        if self._kernels is not None and self._scale is not None and _served(residual) and _served(update):
            return self._kernels.add_norm(residual, update, self._scale, self.bias, self.eps)
        total = residual + update
        return total, self(total)


def _served(hidden: Tensor) -> bool:
    """Whether a kernel can take it: it is dense, and nobody wants a gradient."""
    return hidden.is_contiguous() and not hidden.requires_grad

"""The nonlinearity between an MLP's two linear layers.

Megatron computes GELU by its tanh approximation where it fuses the bias into it (`bias_gelu_fusion`, the default when
there are biases) and exactly otherwise; a model must be served with the one it was trained with.
Source: megatron/core/transformer/mlp.py, megatron/core/fusions/fused_bias_gelu.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from model_providers.kernels.library import Kernels

Activation = Callable[[Tensor], Tensor]


def activation_for(values: Mapping[str, Any], kernels: Kernels | None = None) -> Activation:
    """The activation that the resolved arguments describe: (T, fc1 width) -> (T, fc2 width)."""
    match activation_kernel(values):
        case "silu_gated":
            return partial(_gated, silu) if kernels is None else kernels.silu_gated
        case "quick_gelu_gated":
            return partial(_gated, _quick_gelu) if kernels is None else kernels.quick_gelu_gated
        case "gelu_tanh":
            return partial(gelu, approximate="tanh") if kernels is None else partial(kernels.gelu, tanh=True)
        case "gelu":
            return partial(gelu, approximate="none") if kernels is None else partial(kernels.gelu, tanh=False)
        case _:
            return _squared_relu


def activation_kernel(values: Mapping[str, Any]) -> str | None:
    """The kernel that computes it, one of `ACTIVATIONS`; None where there is none."""
    if values["swiglu"]:
        return "silu_gated"
    if values["quick_geglu"]:
        return "quick_gelu_gated"
    if values["squared_relu"]:
        return None
    fused = values["bias_gelu_fusion"] and values["add_bias_linear"]
    return "gelu_tanh" if fused or values["openai_gelu"] else "gelu"


def _gated(function: Activation, projected: Tensor) -> Tensor:
    gate, up = projected.chunk(2, dim=-1)
    return function(gate) * up


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _squared_relu(x: Tensor) -> Tensor:
    return relu(x).square()

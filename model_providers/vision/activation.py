"""Nonlinearities of image encoders and projections, by name.

Written in plain torch: Megatron's own (megatron/core/activations.py) are compiled at first use. torch computes the last
numbers of a piece of memory by other instructions than those before them, so that their last bits depend on where they
lie; the kernels do not.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from model_providers.backends.activation import Activation
from model_providers.kernels.library import Kernels

ActivationName = Literal["quick_gelu", "fast_gelu", "gelu", "squared_relu", "silu", "swiglu"]
ACTIVATION_NAMES: tuple[ActivationName, ...] = get_args(ActivationName)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _squared_relu(x: Tensor) -> Tensor:
    return relu(x).square()


def _swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up


ACTIVATIONS: dict[ActivationName, Activation] = {
    "quick_gelu": _quick_gelu,
    "fast_gelu": partial(gelu, approximate="tanh"),  # Megatron's name for the tanh approximation
    "gelu": gelu,
    "squared_relu": _squared_relu,
    "silu": silu,
    "swiglu": _swiglu,
}


def activation_for(name: ActivationName, kernels: Kernels | None) -> Activation:
    """(T, width that comes in) -> (T, width that goes out)."""
    if kernels is None:
        return ACTIVATIONS[name]
    by_kernels: dict[ActivationName, Activation] = {
        "quick_gelu": kernels.quick_gelu,
        "fast_gelu": partial(kernels.gelu, tanh=True),
        "gelu": partial(kernels.gelu, tanh=False),
        "squared_relu": _squared_relu,  # a product of two numbers, the same by any instruction
        "silu": kernels.silu,
        "swiglu": kernels.silu_gated,
    }
    return by_kernels[name]

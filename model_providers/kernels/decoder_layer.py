"""Decoder layers and the memory they compute in, as source/decoder_layer.h has them, field by field."""

from __future__ import annotations

import ctypes
from typing import ClassVar

from torch import Tensor

ACTIVATIONS = ("silu_gated", "quick_gelu_gated", "gelu", "gelu_tanh")
"""Kernels between an MLP's linear layers; their places are the numbers that `DecoderLayer.activation` holds."""


class Norm(ctypes.Structure):
    """Of the last dimension. Whoever makes one keeps the tensors."""

    _fields_: ClassVar = [("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("eps", ctypes.c_float)]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, eps: float) -> Norm:
        """weight, bias: (hidden,); no bias is RMSNorm."""
        return cls(weight.data_ptr(), _address(bias), eps)


class Linear(ctypes.Structure):
    """A packed weight, see `Kernels.pack_linear` and `quantize_linear`. Whoever makes one keeps the tensors."""

    _fields_: ClassVar = [
        ("panels", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
    ]

    @classmethod
    def of(cls, panels: Tensor, scales: Tensor | None, outputs: int, bias: Tensor | None) -> Linear:
        """panels: (panels, inputs, 16). scales: of a quantized weight. bias: (outputs,)."""
        return cls(panels.data_ptr(), _address(scales), _address(bias), outputs, panels.shape[1])


class DecoderLayer(ctypes.Structure):
    """keys, values: one layer's part of the KV cache. activation: its place in `ACTIVATIONS`."""

    _fields_: ClassVar = [
        ("attention_norm", Norm),
        ("mlp_norm", Norm),
        ("qkv", Linear),
        ("projection", Linear),
        ("fc1", Linear),
        ("fc2", Linear),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("activation", ctypes.c_int32),
    ]


class LayerBuffers(ctypes.Structure):
    """residual, update, normed (rows, hidden); projected, activated (rows, widest of any layer); scratch for bf16."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("residual", "update", "normed", "projected", "activated", "scratch")),
        ("rows", ctypes.c_int64),
        ("hidden", ctypes.c_int32),
        ("has_update", ctypes.c_int32),
    ]


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

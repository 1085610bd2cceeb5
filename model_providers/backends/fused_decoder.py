"""All layers of a decoder by one call into the CPU kernels.

Called one by one from Python, thirty layers' kernels cost about 3 ms a step on top of what they compute, a tenth of a
step with one sequence. Here nothing but pointers passes between them. With tensor parallelism, ranks add up after each
half of a layer, so there are two calls a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from model_providers.backends.kv_cache import KVCache
from model_providers.backends.layer import ServingTransformerLayer
from model_providers.backends.packed_weight import PanelWeight
from model_providers.backends.quantized_weight import QuantizedWeight
from model_providers.kernels.attention_step import AttentionStep
from model_providers.kernels.decoder_layer import ACTIVATIONS, DecoderLayer, LayerBuffers
from model_providers.kernels.library import Kernels


class FusedDecoder:
    """Computes what `ServingTransformerLayer.forward_packed` does layer by layer, to the same bits.

    The memory that layers compute in is kept: it is as large as the largest step so far needed.
    """

    def __init__(self, layers: Sequence[ServingTransformerLayer], activation: str, kernels: Kernels) -> None:
        self._layers = layers
        self._kernels = kernels
        self._table = (DecoderLayer * len(layers))(*(_describe(layer, activation) for layer in layers))
        self._num_ranks: int = layers[0].self_attention.linear_proj.tp_group.size()
        self._widths = _Widths(self._table)
        self._cache: KVCache | None = None
        self._buffers: dict[str, Tensor] = {}

    @classmethod
    def of(
        cls, layers: Sequence[ServingTransformerLayer], activation: str | None, kernels: Kernels | None
    ) -> Self | None:
        """None where a part of some layer is not computed by the kernels. activation: see `ACTIVATIONS`."""
        if kernels is None or activation is None or not all(map(_is_served_by_kernels, layers)):
            return None
        return cls(layers, activation, kernels)

    def run(
        self, residual: Tensor, cache: KVCache, step: AttentionStep, num_layers: int
    ) -> tuple[Tensor, Tensor | None]:
        """The first layers. residual (T, hidden), changed in place -> itself, and the update to be added, if any.

        The update is valid until the next call.
        """
        if num_layers == 0:
            return residual, None
        self._point_at(cache)
        rows = residual.shape[0]
        update = self._buffer("update", rows, residual.shape[1], residual.dtype)
        buffers = LayerBuffers(
            residual=residual.data_ptr(),
            update=update.data_ptr(),
            normed=self._buffer("normed", rows, residual.shape[1], residual.dtype).data_ptr(),
            projected=self._buffer("projected", rows, self._widths.projected, residual.dtype).data_ptr(),
            activated=self._buffer("activated", rows, self._widths.activated, residual.dtype).data_ptr(),
            rows=rows,
            hidden=residual.shape[1],
        )
        if residual.dtype != torch.float32:
            buffers.scratch = self._buffer("scratch", rows, self._widths.inputs, torch.float32).data_ptr()
        if self._num_ranks == 1:
            self._kernels.run_layers(self._table, num_layers, buffers, step, residual.dtype)
            return residual, update
        for layer, pointers in zip(self._layers[:num_layers], self._table[:num_layers], strict=True):
            self._kernels.attention_half(pointers, buffers, step, residual.dtype)
            attended = layer.self_attention.linear_proj.sum_over_ranks(update)
            buffers.update, buffers.has_update = attended.data_ptr(), 1
            self._kernels.mlp_half(pointers, buffers, residual.dtype)
            update = layer.mlp.linear_fc2.sum_over_ranks(attended)
            buffers.update = update.data_ptr()
        return residual, update

    def _point_at(self, cache: KVCache) -> None:
        if self._cache is not cache:
            for pointers, keys, values in zip(self._table, cache.keys, cache.values, strict=True):
                pointers.keys, pointers.values = keys.data_ptr(), values.data_ptr()
            self._cache = cache

    def _buffer(self, name: str, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """(rows, width), from memory that is kept."""
        kept = self._buffers.get(name)
        if kept is None or len(kept) < rows or kept.dtype != dtype:
            kept = self._buffers[name] = torch.empty(rows, width, dtype=dtype)
        return kept[:rows]


class _Widths:
    """The widest of all layers. projected: outputs of qkv and fc1. activated: heads, and inputs of fc2."""

    def __init__(self, table: Any) -> None:
        self.projected = max(max(layer.qkv.outputs, layer.fc1.outputs) for layer in table)
        self.activated = max(max(layer.projection.inputs, layer.fc2.inputs) for layer in table)
        self.inputs = max(self.activated, *(max(layer.qkv.inputs, layer.fc1.inputs) for layer in table))


def _linears(layer: ServingTransformerLayer) -> dict[str, Any]:
    attention, mlp = layer.self_attention, layer.mlp
    return {
        "qkv": attention.linear_qkv,
        "projection": attention.linear_proj,
        "fc1": mlp.linear_fc1,
        "fc2": mlp.linear_fc2,
    }


def _is_served_by_kernels(layer: ServingTransformerLayer) -> bool:
    """Whether weights and norms are the kernels' own, and nothing happens between qkv and attention."""
    norms = (layer.input_layernorm, layer.pre_mlp_layernorm)
    return (
        layer.self_attention.q_layernorm is None
        and layer.self_attention.k_layernorm is None
        and all(norm.has_kernel for norm in norms)
        and all(isinstance(linear.packed, PanelWeight | QuantizedWeight) for linear in _linears(layer).values())
    )


def _describe(layer: ServingTransformerLayer, activation: str) -> DecoderLayer:
    linears = {name: linear.packed.pointers(linear.bias_of_product) for name, linear in _linears(layer).items()}
    return DecoderLayer(
        attention_norm=layer.input_layernorm.pointers(),
        mlp_norm=layer.pre_mlp_layernorm.pointers(),
        activation=ACTIVATIONS.index(activation),
        **linears,
    )

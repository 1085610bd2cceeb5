"""One transformer layer over a packed batch.

A subclass of megatron-core's TransformerLayer: parameters, sharding and state-dict keys are Megatron's; the forward
pass is the serving one, without the training machinery (dropout, recomputation, fusions chosen by flags).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

from model_providers.backends.activation import Activation
from model_providers.backends.attention import AttentionBackend
from model_providers.backends.kv_cache import KVCache
from model_providers.backends.rotary import RotaryAngles


@dataclass(frozen=True)
class LayerContext:
    """What all layers of one step share. attention_plan: the backend's own. angles: None without rotary embedding."""

    cache: KVCache
    attention: AttentionBackend
    attention_plan: Any
    angles: RotaryAngles | None


class UnusedCoreAttention(MegatronModule):  # type: ignore[misc]
    """Fills the core-attention place of Megatron's SelfAttention; ServingTransformerLayer attends by its backend."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__(config=config)


class ServingTransformerLayer(TransformerLayer):  # type: ignore[misc]
    """forward_packed is the whole layer, top to bottom."""

    activation: Activation  # set by the provider once the layer is built

    def forward_packed(self, residual: Tensor, update: Tensor | None, context: LayerContext) -> tuple[Tensor, Tensor]:
        """residual (T, hidden) and what the layer before still has to add to it -> the same pair for the next layer.

        Handing the last addition on lets each norm take it together with its own work.
        """
        if update is None:
            normed = self.input_layernorm(residual)
        else:
            residual, normed = self.input_layernorm.add(residual, update)
        attended = self._attend(normed, context)
        residual, normed = self.pre_mlp_layernorm.add(residual, attended)
        return residual, self.mlp.linear_fc2.apply(self.activation(self.mlp.linear_fc1.apply(normed)))

    def _attend(self, normed: Tensor, context: LayerContext) -> Tensor:
        attention = self.self_attention
        kv_heads = attention.num_query_groups_per_partition
        queries_per_group = attention.num_attention_heads_per_partition // kv_heads
        head_dim = attention.hidden_size_per_attention_head
        num_tokens = normed.shape[0]

        # Megatron lays the projection out per KV group: the group's queries, its key, its value.
        qkv = attention.linear_qkv.apply(normed).view(num_tokens, kv_heads, queries_per_group + 2, head_dim)
        value = qkv[:, :, -1]
        if attention.q_layernorm is None:
            query_and_key = qkv[:, :, :-1]
        else:
            query = attention.q_layernorm(qkv[:, :, :queries_per_group])
            query_and_key = torch.cat((query, attention.k_layernorm(qkv[:, :, queries_per_group:-1])), dim=2)
        if context.angles is not None:
            rotated = context.angles.rotate(query_and_key.reshape(num_tokens, -1, head_dim))
            query_and_key = rotated.view(num_tokens, kv_heads, queries_per_group + 1, head_dim)

        attended = context.attention.attend(
            query_and_key[:, :, :-1].reshape(num_tokens, -1, head_dim),
            query_and_key[:, :, -1],
            value,
            layer=self.layer_number - 1,
            cache=context.cache,
            plan=context.attention_plan,
            scale=self.config.softmax_scale or head_dim**-0.5,
        )
        out: Tensor = attention.linear_proj.apply(attended)
        return out

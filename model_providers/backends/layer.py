"""One transformer layer over a packed batch.

A subclass of megatron-core's TransformerLayer: parameters, sharding and state-dict keys are Megatron's; the forward
pass is the serving one, without the training machinery (dropout, recomputation, fusions chosen by flags).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

from model_providers.backends.activation import Activation
from model_providers.backends.attention import AttentionBackend
from model_providers.backends.kv_cache import KVCache


@dataclass(frozen=True)
class LayerContext:
    """What all layers of one step share. attention_plan: the backend's own."""

    cache: KVCache
    attention: AttentionBackend
    attention_plan: Any


class UnusedCoreAttention(MegatronModule):  # type: ignore[misc]
    """Fills the core-attention place of Megatron's SelfAttention; ServingTransformerLayer attends by its backend."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__(config=config)


class ServingTransformerLayer(TransformerLayer):  # type: ignore[misc]
    """forward_packed is the whole layer, top to bottom."""

    activation: Activation  # set by the provider once the layer is built

    def forward_packed(
        self, residual: Tensor, update: Tensor | None, context: LayerContext, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """residual (T, hidden) and what the layer before still has to add to it -> the same pair for the next layer.

        Handing the last addition on lets each norm take it together with its own work. rows: (R,) int64, for the last
        layer: the rows that anybody needs; the others have their keys and values written, and are left out then.
        """
        if update is None:
            normed = self.input_layernorm(residual)
        else:
            residual, normed = self.input_layernorm.add(residual, update)
        attended = self._attend(normed, context, rows)
        if rows is not None:
            residual = residual[rows]
        residual, normed = self.pre_mlp_layernorm.add(residual, attended)
        return residual, self.mlp.linear_fc2.apply(self.activation(self.mlp.linear_fc1.apply(normed)))

    @property
    def queries_per_group(self) -> int:
        """Query heads that share a KV head."""
        attention = self.self_attention
        ratio: int = attention.num_attention_heads_per_partition // attention.num_query_groups_per_partition
        return ratio

    @property
    def attention_scale(self) -> float:
        """What scores are multiplied by."""
        scale: float = self.config.softmax_scale or self.self_attention.hidden_size_per_attention_head**-0.5
        return scale

    def _attend(self, normed: Tensor, context: LayerContext, rows: Tensor | None) -> Tensor:
        attention = self.self_attention
        # Megatron lays the projection out per KV group: the group's queries, its key, its value.
        qkv = attention.linear_qkv.apply(normed).view(
            normed.shape[0],
            attention.num_query_groups_per_partition,
            self.queries_per_group + 2,
            attention.hidden_size_per_attention_head,
        )
        if attention.q_layernorm is not None:
            queries, key = qkv[:, :, :-2], qkv[:, :, -2:-1]
            queries.copy_(attention.q_layernorm(queries))
            key.copy_(attention.k_layernorm(key))
        attended = context.attention.attend(
            qkv, layer=self.layer_number - 1, cache=context.cache, plan=context.attention_plan
        )
        out: Tensor = attention.linear_proj.apply(attended if rows is None else attended[rows])
        return out

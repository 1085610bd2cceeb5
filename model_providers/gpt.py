"""GPT-family decoders: Megatron's GPTModel with a forward pass over packed batches."""

from __future__ import annotations

from typing import cast

import torch
from megatron.core.models.gpt import GPTModel
from torch import Tensor
from torch.nn.functional import embedding, linear

from model_providers.backends.activation import activation_for, activation_kernel
from model_providers.backends.attention import AttentionBackend
from model_providers.backends.collectives import Collectives, collectives_for
from model_providers.backends.fused_decoder import FusedDecoder
from model_providers.backends.kv_cache import KVCache
from model_providers.backends.layer import LayerContext
from model_providers.backends.linear import ServingColumnParallelLinear
from model_providers.backends.packed_weight import PackedWeight
from model_providers.backends.prepare import packed, packs_linears, prepare_modules
from model_providers.backends.rotary import RotaryTable
from model_providers.backends.step_metadata import StepMetadata
from model_providers.checkpoint.load import load_weights
from model_providers.config import ModelConfig
from model_providers.kernels.attention_step import AttentionStep
from model_providers.kernels.library import kernels_for
from model_providers.layer_specs import decoder_block_spec
from model_providers.transformer_config import transformer_config


class ServingGPTModel(GPTModel):  # type: ignore[misc]
    """GPTModel for serving: same parameters and keys; `forward_packed` and `compute_logits` replace `forward`.

    token ids: (T,) packed over sequences. Hidden states: (T, hidden). Logits: (rows, padded vocabulary / TP ranks).
    """

    collectives: Collectives  # of the tensor-parallel group
    _rotary_table: RotaryTable | None = None
    _packed_head: PackedWeight | None = None
    _fused_decoder: FusedDecoder | None = None

    @property
    def num_kv_heads_per_rank(self) -> int:
        return cast(int, self.decoder.layers[0].self_attention.num_query_groups_per_partition)

    def prepare_for_serving(self, config: ModelConfig) -> None:
        """Derive what the loaded weights and arguments imply: packed weights, norm scales, the rotary table."""
        kernels = kernels_for(config.kernels, config.dtype, config.device)
        activation = activation_for(config.values, kernels)
        for layer in self.decoder.layers:
            layer.activation = activation
        prepare_modules(self, config, self.collectives)
        self._fused_decoder = FusedDecoder.of(self.decoder.layers, activation_kernel(config.values), kernels)
        if packs_linears(config) and self.share_embeddings_and_output_weights:
            head = self.shared_embedding_or_output_weight()
            self._packed_head = packed("the output head, tied to the word embedding,", head, config)
        if self.position_embedding_type == "rope":
            self.rotary_pos_emb.inv_freq = self.rotary_pos_emb.inv_freq.to(config.device)
            self._rotary_table = RotaryTable(self.rotary_pos_emb, config.max_model_len)

    @torch.inference_mode()
    def forward_packed(
        self,
        token_ids: Tensor,
        step: StepMetadata,
        cache: KVCache,
        attention: AttentionBackend,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Run all layers over one packed batch, writing its keys and values to the cache -> hidden states (T, hidden).

        rows: (R,) int64, rising: the rows whose hidden states are wanted -> (R, hidden). The final norm is included.
        Equal on all ranks.
        """
        residual = self._embed(token_ids, step)
        first = self.decoder.layers[0]
        plan = attention.plan(
            step,
            cache,
            rotary=self._rotary_table,
            queries_per_group=first.queries_per_group,
            scale=first.attention_scale,
        )
        context = LayerContext(cache, attention, plan)
        layers = self.decoder.layers
        if rows is None or len(rows) == len(token_ids):
            residual, update = self._whole_layers(residual, context, len(layers))
        else:
            residual, update = self._whole_layers(residual, context, len(layers) - 1)
            residual, update = layers[-1].forward_packed(residual, update, context, rows)
        assert update is not None, "a decoder has layers"
        _, normed = self.decoder.final_layernorm.add(residual, update)
        return cast(Tensor, normed)

    def _whole_layers(self, residual: Tensor, context: LayerContext, count: int) -> tuple[Tensor, Tensor | None]:
        """The first `count` layers for all rows."""
        if self._fused_decoder is not None and isinstance(context.attention_plan, AttentionStep):
            return self._fused_decoder.run(residual, context.cache, context.attention_plan, count)
        update: Tensor | None = None
        for layer in self.decoder.layers[:count]:
            residual, update = layer.forward_packed(residual, update, context)
        return residual, update

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden (rows, hidden) -> this rank's shard of the logits, (rows, padded vocabulary / ranks)."""
        if self._packed_head is not None:
            return self._packed_head.multiply(hidden, None)
        if self.share_embeddings_and_output_weights:
            return linear(hidden, self.shared_embedding_or_output_weight())
        return cast(Tensor, self.output_layer.apply(hidden))

    def embed_words(self, token_ids: Tensor) -> Tensor:
        """(T,) -> word embeddings (T, hidden), equal on all ranks; positions are not part of them."""
        words = self.embedding.word_embeddings
        if words.tp_group.size() == 1:
            return embedding(token_ids, words.weight)
        local = token_ids - words.vocab_start_index
        elsewhere = (local < 0) | (local >= words.num_embeddings_per_partition)
        hidden = embedding(local.masked_fill(elsewhere, 0), words.weight)
        hidden.masked_fill_(elsewhere[:, None], 0.0)
        return self.collectives.all_reduce(hidden)

    def _embed(self, token_ids: Tensor, step: StepMetadata) -> Tensor:
        hidden = self.embed_words(token_ids)
        if step.images is not None:
            hidden.index_copy_(0, step.images.rows, step.images.embeddings)
        if self.embedding.add_position_embedding:
            hidden = hidden + embedding(step.positions, self.embedding.position_embeddings.weight)
        return hidden


def construct(config: ModelConfig) -> ServingGPTModel:
    """The model on the meta device: names and shapes without weights. Megatron's process groups must exist.

    All ranks call it together. Raises ModelProviderError for a way to exchange that is asked for and impossible.
    """
    megatron_config = transformer_config(config)
    values = config.values
    tp_size = config.tensor_model_parallel_size
    padded_rows = -(-values["padded_vocab_size"] // tp_size) * tp_size
    with torch.device("meta"):
        model = ServingGPTModel(
            config=megatron_config,
            transformer_layer_spec=decoder_block_spec(megatron_config),
            vocab_size=padded_rows,
            max_sequence_length=values["max_position_embeddings"],
            parallel_output=True,
            share_embeddings_and_output_weights=not values["untie_embeddings_and_output_weights"],
            position_embedding_type=values["position_embedding_type"],
            rotary_percent=values["rotary_percent"],
            rotary_base=values["rotary_base"],
            rope_scaling=values["use_rope_scaling"],
            rope_scaling_factor=values["rope_scaling_factor"],
            seq_len_interpolation_factor=values["rotary_seq_len_interpolation_factor"],
        )
        if not model.share_embeddings_and_output_weights:
            model.output_layer = ServingColumnParallelLinear(
                megatron_config.hidden_size,
                padded_rows,
                config=megatron_config,
                init_method=megatron_config.init_method,
                bias=False,
                tp_group=model.pg_collection.tp,
            )
    # Before the weights are loaded, for ranks do that at different speeds, and agreeing on a way has a timeout.
    model.collectives = collectives_for(config, model.pg_collection.tp)
    return model


def build(config: ModelConfig) -> ServingGPTModel:
    """Build on the meta device, load strictly, prepare. Megatron's process groups must exist.

    Raises CheckpointError when the checkpoint lacks a tensor of the model or holds one that the model does not have.
    """
    model = construct(config)
    load_weights(model, config)
    model.eval().requires_grad_(False)
    model.prepare_for_serving(config)
    return model

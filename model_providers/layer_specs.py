"""The layer spec of a served decoder: Megatron's modules in Megatron's places, with ours for what inference wants."""

from __future__ import annotations

from functools import partial
from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

from model_providers.backends.layer import ServingTransformerLayer, UnusedCoreAttention
from model_providers.backends.linear import ServingColumnParallelLinear, ServingRowParallelLinear
from model_providers.backends.norm import ServingNorm

# Transformer Engine fuses a norm into the linear layer after it, and torch_dist checkpoints carry its names.
FUSED_NORM_KEYS = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}


def decoder_block_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    """Specs for every layer of a dense decoder, and for its final norm."""
    qk_norm: Any = ServingNorm if config.qk_layernorm else None
    layer = ModuleSpec(
        module=ServingTransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=ServingNorm,
            self_attention=ModuleSpec(
                module=SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ServingColumnParallelLinear,
                    core_attention=UnusedCoreAttention,
                    linear_proj=ServingRowParallelLinear,
                    q_layernorm=qk_norm,
                    k_layernorm=qk_norm,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=ServingNorm,
            mlp=partial(
                MLP.as_mlp_submodule,
                submodules=MLPSubmodules(linear_fc1=ServingColumnParallelLinear, linear_fc2=ServingRowParallelLinear),
            ),
            mlp_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map=FUSED_NORM_KEYS,
        ),
    )
    return TransformerBlockSubmodules(layer_specs=[layer] * config.num_layers, layer_norm=ServingNorm)

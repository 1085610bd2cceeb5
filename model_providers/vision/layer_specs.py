"""Layer specs of image encoders: Megatron's modules in Megatron's places, with ours for what inference wants."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

from model_providers.backends.layer import UnusedCoreAttention
from model_providers.backends.linear import ServingColumnParallelLinear, ServingRowParallelLinear
from model_providers.backends.norm import ServingNorm
from model_providers.layer_specs import FUSED_NORM_KEYS
from model_providers.vision.layer import (
    InternViTSelfAttention,
    LayerScalingVisionLayer,
    ServingVisionLayer,
    VisionSelfAttention,
)
from model_providers.vision.settings import EncoderSettings


def vision_layer_spec(settings: EncoderSettings) -> ModuleSpec:
    """The spec of every layer of the encoder."""
    return ModuleSpec(
        module=LayerScalingVisionLayer if settings.layer_scaling else ServingVisionLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=ServingNorm,
            self_attention=ModuleSpec(
                module=InternViTSelfAttention if settings.qk_layernorm else VisionSelfAttention,
                params={"attn_mask_type": AttnMaskType.no_mask},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ServingColumnParallelLinear,
                    core_attention=UnusedCoreAttention,
                    linear_proj=ServingRowParallelLinear,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=ServingNorm,
            mlp=partial(
                MLP.as_mlp_submodule,
                submodules=MLPSubmodules(linear_fc1=ServingColumnParallelLinear, linear_fc2=ServingRowParallelLinear),
            ),
            mlp_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map=keys_map(settings),
        ),
    )


def keys_map(settings: EncoderSettings) -> Mapping[str, str]:
    """Names in torch_dist checkpoints, where they differ from the modules'."""
    return FUSED_NORM_KEYS if settings.fused_norms else {}

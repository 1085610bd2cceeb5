"""Megatron's TransformerConfigs of image encoder and projection, from the language model's arguments.

As in training, everything that the encoder does not say itself is inherited (get_vision_model_config and
get_vision_projection_config in Megatron-LM's examples/multimodal/config.py change a copy of the language model's).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from megatron.core.transformer.transformer_config import TransformerConfig

from model_providers.config import ModelConfig
from model_providers.transformer_config import transformer_config
from model_providers.vision.activation import ACTIVATIONS
from model_providers.vision.projection_settings import ProjectionSettings
from model_providers.vision.settings import EncoderSettings

# What describes the language model and must not be inherited.
_NEITHER: dict[str, Any] = {
    "swiglu": False,
    "squared_relu": False,
    "quick_geglu": False,
    "qk_layernorm": False,
    "layernorm_zero_centered_gamma": False,
    "num_experts": None,
    "decoder_first_pipeline_num_layers": None,
    "decoder_last_pipeline_num_layers": None,
}


def vision_config(config: ModelConfig, settings: EncoderSettings) -> TransformerConfig:
    """Raises ValueError where Megatron refuses, as for heads that the tensor-parallel size does not divide."""
    values = {
        "num_layers": settings.num_layers,
        "hidden_size": settings.hidden_size,
        "ffn_hidden_size": settings.ffn_hidden_size,
        "num_attention_heads": settings.num_attention_heads,
        "kv_channels": settings.kv_channels,
        "group_query_attention": False,
        "num_query_groups": None,
        "normalization": settings.normalization,
        "layernorm_epsilon": settings.layernorm_epsilon,
        "add_bias_linear": True,
        "add_qkv_bias": settings.add_qkv_bias,
        "swiglu": settings.activation == "swiglu",
    }
    built = transformer_config(replace(config, values={**config.values, **_NEITHER, **values}))
    built.activation_func = ACTIVATIONS["silu" if settings.activation == "swiglu" else settings.activation]
    # Read by LLaVAModel and RADIOViTModel from here.
    built.vision_model_type = settings.model_type
    built.class_token_len = settings.images.num_class_tokens
    return built


def projection_config(config: ModelConfig, settings: ProjectionSettings) -> TransformerConfig:
    """hidden_size is the width that comes out, the language model's."""
    values = {
        "ffn_hidden_size": settings.ffn_hidden_size,
        "add_bias_linear": settings.add_bias,
        "add_qkv_bias": settings.add_bias,
        # A norm that is not there is never built, but the configuration must name one.
        "normalization": settings.normalization or "LayerNorm",
        "layernorm_epsilon": settings.layernorm_epsilon,
    }
    built = transformer_config(replace(config, values={**config.values, **_NEITHER, **values}))
    built.activation_func = ACTIVATIONS[settings.activation]
    return built

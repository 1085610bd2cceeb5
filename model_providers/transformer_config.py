"""Megatron's TransformerConfig for serving, from the resolved arguments."""

from __future__ import annotations

import logging
from argparse import Namespace

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.training.argument_utils import core_transformer_config_from_args

from model_providers.config import ModelConfig

# What training needs and serving does not, or what only exists as a fused CUDA kernel. The forward pass here does not
# consult these; they are set so that Megatron's own checks do not ask for apex, Transformer Engine or a GPU.
_SERVING_OVERRIDES = {
    "perform_initialization": False,
    "bias_gelu_fusion": False,
    "bias_swiglu_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "apply_rope_fusion": False,
    "gradient_accumulation_fusion": False,
    "no_persist_layer_norm": True,
    "persist_layer_norm": False,
    "sequence_parallel": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "pipeline_model_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None,
    "context_parallel_size": 1,
    "tensor_parallel_num_weight_shards": None,
    "expert_tensor_parallel_num_weight_shards": None,
    "gtp_weight_remat_size": 1,
    "expert_gtp_weight_remat_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": None,
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "cuda_graph_impl": "none",
    "cpu_offloading": False,
    "overlap_p2p_comm": False,
    "tp_comm_overlap": False,
    "fp8": None,
    "fp4": None,
    "deterministic_mode": False,
}

# Enumerations and number formats of training and of Megatron's own inference, which a document holds as names at best.
# Without them in the namespace, TransformerConfig keeps its own defaults.
_LEFT_OUT = (
    "attention_backend",
    "autocast_dtype",
    "cuda_graph_modules",
    "cuda_graph_scope",
    "inference_cuda_graph_scope",
    "mamba_inference_conv_states_dtype",
    "mamba_inference_ssm_states_dtype",
    "mamba_training_ssm_states_dtype",
    "pipeline_dtype",
    "pipeline_model_parallel_layout",
)


def transformer_config(config: ModelConfig) -> TransformerConfig:
    """Build it with `core_transformer_config_from_args`, as training does. Raises ValueError where Megatron refuses."""
    args: Namespace = config.namespace
    for name, value in _SERVING_OVERRIDES.items():
        setattr(args, name, value)
    for name in _LEFT_OUT:
        vars(args).pop(name, None)
    args.tensor_model_parallel_size = config.tensor_model_parallel_size
    args.use_cpu_initialization = config.device.type == "cpu"
    args.params_dtype = config.dtype
    args.bf16 = config.dtype == torch.bfloat16
    args.fp16 = config.dtype == torch.float16
    logging.getLogger("megatron.core").setLevel(logging.ERROR)
    return core_transformer_config_from_args(args)

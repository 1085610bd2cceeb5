"""Models that cannot be built here, refused by name: (argument, when, why). Read after resolution. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Refusal(NamedTuple):
    """`refuses(value)` says whether the argument's final value describes a model that is not supported."""

    argument: str
    refuses: Callable[[Any], bool]
    reason: str


def _is_set(value: Any) -> bool:
    return value not in (None, False, 0, "", [], ())


def _other_than(*supported: Any) -> Callable[[Any], bool]:
    return lambda value: value not in supported


REFUSALS = (
    Refusal("num_experts", _is_set, "mixture-of-experts layers"),
    Refusal("multi_latent_attention", _is_set, "multi-latent attention"),
    Refusal("experimental_attention_variant", _is_set, "experimental attention variants"),
    Refusal("linear_attention_freq", _is_set, "linear attention"),
    Refusal("is_hybrid_model", _is_set, "hybrid (Mamba) layers"),
    Refusal("hybrid_layer_pattern", _is_set, "hybrid (Mamba) layers"),
    Refusal("spec", _is_set, "layer specifications of the checkpoint's own"),
    Refusal("mtp_num_layers", _is_set, "multi-token prediction layers"),
    Refusal("heterogeneous_layers_config_path", _is_set, "layers that differ from each other"),
    Refusal("heterogeneous_layers_config_encoded_json", _is_set, "layers that differ from each other"),
    Refusal("position_embedding_type", _other_than("rope", "learned_absolute", "none"), "these position embeddings"),
    Refusal("rope_type", _other_than(None, "rope"), "this kind of rotary embedding"),
    Refusal("no_rope_freq", _is_set, "layers without rotary embeddings among layers with them"),
    Refusal("window_size", _is_set, "sliding-window attention"),
    Refusal("softmax_type", _other_than(None, "vanilla"), "attention sinks (softmax off by one, or learned)"),
    Refusal("attention_output_gate", _is_set, "gated attention output"),
    Refusal("qk_l2_norm", _is_set, "L2 normalisation of queries and keys"),
    Refusal("normalization", _other_than("LayerNorm", "RMSNorm"), "this normalisation"),
    Refusal("glu_linear_offset", _is_set, "an offset in gated linear units"),
    Refusal("activation_func_clamp_value", _is_set, "clamped activations"),
    Refusal("apply_residual_connection_post_layernorm", _is_set, "residual connections after the norm"),
    Refusal("use_mup", _is_set, "maximal-update parametrisation"),
)

"""Rotary position embeddings: which of Hugging Face's variants Megatron's GPTModel computes, and its flags for them."""

from __future__ import annotations

from typing import Any

from model_providers.errors import UnsupportedModelError

# Megatron hard-codes these three of Llama 3's constants (rotary_pos_embedding.py, _apply_scaling).
_LLAMA3_CONSTANTS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def rope_flags(config: Any) -> list[str]:
    """Flags for `config.rope_parameters` (transformers 5: one dictionary with rope_type and rope_theta).

    Raises UnsupportedModelError for a rope type other than default and llama3, and for constants unlike Megatron's.
    """
    parameters: dict[str, Any] = config.rope_parameters
    rope_type = parameters.get("rope_type", "default")
    theta = float(parameters["rope_theta"])
    if not theta.is_integer():
        raise UnsupportedModelError("rope_theta", f"{theta} is not an integer, which Megatron's --rotary-base must be")
    partial = float(parameters.get("partial_rotary_factor", 1.0))
    flags = ["--position-embedding-type", "rope", "--rotary-base", str(int(theta)), "--rotary-percent", str(partial)]
    if rope_type == "default":
        return flags
    if rope_type != "llama3":
        raise UnsupportedModelError("rope_type", f"{rope_type!r} is not supported, only 'default' and 'llama3'")
    for name, constant in _LLAMA3_CONSTANTS.items():
        if float(parameters[name]) != constant:
            raise UnsupportedModelError(name, f"{parameters[name]} differs from Megatron's fixed {constant:g}")
    return [*flags, "--use-rope-scaling", "--rope-scaling-factor", str(float(parameters["factor"]))]

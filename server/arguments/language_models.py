"""What a vision-language model's `language_model_type` implies about its language model.

Megatron's multimodal training sets these from the name after it has read its arguments, whatever they say: for such a
checkpoint the name is the truth and the saved arguments are not. Only the command line and the config file win over it.
Source: get_language_model_config in Megatron-LM's examples/multimodal/config.py. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA: Mapping[str, Any] = {"swiglu": True, "add_bias_linear": False, "layernorm_zero_centered_gamma": False}
_QWEN: Mapping[str, Any] = {**_LLAMA, "add_qkv_bias": True}
_NEMOTRON: Mapping[str, Any] = {"swiglu": False, "squared_relu": True, "add_bias_linear": False}

_IMPLIED: Mapping[str, Mapping[str, Any]] = {
    "llama3_8b": {**_LLAMA, "ffn_hidden_size": 14336},
    "llama3.1_8b": {**_LLAMA, "ffn_hidden_size": 14336},
    "llama3.1_70B": {**_LLAMA, "ffn_hidden_size": 28672},
    "llama3.2_1b": {**_LLAMA, "ffn_hidden_size": 8192},
    "mistral_7b": {**_LLAMA, "ffn_hidden_size": 14336},
    "yi-34b": {**_LLAMA, "ffn_hidden_size": 20480},
    "qwen2.0_72B": {**_QWEN, "ffn_hidden_size": 29568},
    "qwen2.5_7B": {**_QWEN, "ffn_hidden_size": 18944},
    "qwen2.5_72B": {**_QWEN, "ffn_hidden_size": 29568},
    "nemotron5-8b": {**_NEMOTRON, "ffn_hidden_size": 21504},
}


def implied_by_language_model(language_model_type: str | None) -> Mapping[str, Any]:
    """Values by destination; empty for a name that implies nothing here."""
    return _IMPLIED.get(language_model_type or "", {})

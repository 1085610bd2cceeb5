"""Which file speaks for which Hugging Face `model_type`."""

from __future__ import annotations

from typing import Any

from model_providers.checkpoint.hf.family import Family
from model_providers.checkpoint.hf.gpt2 import Gpt2
from model_providers.checkpoint.hf.llama import Llama
from model_providers.checkpoint.hf.mistral import Mistral
from model_providers.checkpoint.hf.qwen2 import Qwen2
from model_providers.checkpoint.hf.qwen3 import Qwen3
from model_providers.errors import UnsupportedModelError

FAMILIES: dict[str, Family] = {
    "llama": Llama(),  # SmolLM and SmolLM2 call themselves llama
    "mistral": Mistral(),
    "qwen2": Qwen2(),
    "qwen3": Qwen3(),
    "gpt2": Gpt2(),
}


def family_of(config: Any) -> Family:
    """Raises UnsupportedModelError, listing what there is, for any other model and for a quantised one."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModelError("model_type", f"{config.model_type!r} cannot be imported; these can: {known}")
    if getattr(config, "quantization_config", None):
        raise UnsupportedModelError(
            "quantization_config", "quantised weights cannot be imported; dequantise them first"
        )
    return family

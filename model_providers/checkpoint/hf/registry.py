"""Which file speaks for which Hugging Face `model_type`."""

from __future__ import annotations

from typing import Any

from model_providers.checkpoint.hf.family import Family
from model_providers.checkpoint.hf.internvl import InternVL
from model_providers.checkpoint.hf.llava import Llava
from model_providers.checkpoint.hf.text_families import TEXT_FAMILIES
from model_providers.errors import UnsupportedModelError

FAMILIES: dict[str, Family] = {**TEXT_FAMILIES, "llava": Llava(), "internvl": InternVL()}


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

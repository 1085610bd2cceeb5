"""GPT or vision-language model: decided by the checkpoint's arguments alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from server.config import ModelKindName

# What training scripts put where there is no language model to name.
_PLACEHOLDERS = frozenset(
    {"", "-", "?", "default", "dummy", "false", "n/a", "na", "nil", "none", "null", "placeholder", "tbd", "todo"}
    | {"undefined", "unknown", "unset", "gpt"}
)


@dataclass(frozen=True)
class ModelKind:
    """reasons: sentences, the deciding one first."""

    kind: ModelKindName
    reasons: list[str]


def detect_model_kind(checkpoint_args: Mapping[str, Any]) -> ModelKind:
    """A vision-language model has a real `language_model_type`: LLaVA training requires one, GPT training has none."""
    value = checkpoint_args.get("language_model_type")
    if value is None:
        return ModelKind("gpt", ["the checkpoint's args name no language_model_type"])
    if not isinstance(value, str) or value.strip().strip("<>").lower() in _PLACEHOLDERS:
        return ModelKind("gpt", [f"language_model_type is {value!r} in the checkpoint's args, a placeholder"])
    reasons = [f"language_model_type is {value!r} in the checkpoint's args"]
    if encoder := checkpoint_args.get("vision_model_type"):
        reasons.append(f"vision_model_type is {encoder!r}")
    return ModelKind("vlm", reasons)

"""Arguments under their older or opposite names, and Megatron's inference arguments that stand for ours.

Pure: each source of values is rewritten by itself, before sources are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from server.arguments.option_groups import flag_of


@dataclass(frozen=True)
class Rename:
    """`old` gives `new` its value, negated where the names are opposites.

    old_wins: where a source has both. Otherwise the new name does.
    """

    old: str
    new: str
    negated: bool = False
    old_wins: bool = False


RENAMES = (
    Rename("norm_epsilon", "layernorm_epsilon"),
    Rename("apply_layernorm_1p", "layernorm_zero_centered_gamma"),
    # As megatron.training.checkpointing.load_args_from_checkpoint does: early checkpoints have both; the old one holds.
    Rename("disable_bias_linear", "add_bias_linear", negated=True, old_wins=True),
    Rename("hybrid_override_pattern", "hybrid_layer_pattern"),
)

# Megatron's inference arguments -> ours, when they are typed.
INFERENCE_ARGUMENTS = (
    Rename("inference_dynamic_batching_max_requests", "max_running_requests"),
    Rename("inference_max_requests", "max_running_requests"),
    Rename("inference_dynamic_batching_max_tokens", "max_batched_tokens"),
    Rename("inference_max_seq_length", "max_model_len"),
    Rename("inference_dynamic_batching_block_size", "block_size"),
    Rename("inference_dynamic_batching_buffer_size_gb", "kv_cache_gb"),
    Rename("inference_dynamic_batching_enable_prefix_caching", "prefix_caching"),
)


@dataclass(frozen=True)
class Renamed:
    """values: by today's names. origins: for each value that came under another name, words that say so."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]


def rename_checkpoint_args(args: Mapping[str, Any]) -> Renamed:
    """Checkpoint arguments under today's names."""
    renamed = _apply(args, RENAMES, lambda name: name)
    if args.get("use_rotary_position_embeddings") and "position_embedding_type" not in args:
        renamed.values["position_embedding_type"] = "rope"
        renamed.origins["position_embedding_type"] = "from use_rotary_position_embeddings"
    return renamed


def rename_typed(typed: Mapping[str, Any]) -> Renamed:
    """Typed arguments, with ours in place of those that stand for them. Ours wins where both are typed."""
    renamed = _apply(typed, (*RENAMES, *INFERENCE_ARGUMENTS), flag_of)
    if typed.get("use_rotary_position_embeddings") and "position_embedding_type" not in typed:
        renamed.values["position_embedding_type"] = "rope"
        renamed.origins["position_embedding_type"] = "from --use-rotary-position-embeddings"
    for name in ("bf16", "fp16"):
        if typed.get(name) and "dtype" not in renamed.values:
            renamed.values["dtype"] = name
            renamed.origins["dtype"] = f"from {flag_of(name)}"
    return renamed


@dataclass(frozen=True)
class _Building(Renamed):
    values: dict[str, Any]
    origins: dict[str, str]


def _apply(values: Mapping[str, Any], renames: tuple[Rename, ...], say: Any) -> _Building:
    building = _Building(dict(values), {})
    for rename in renames:
        if values.get(rename.old) is None or (not rename.old_wins and building.values.get(rename.new) is not None):
            continue
        value = values[rename.old]
        building.values[rename.new] = not value if rename.negated else value
        building.origins[rename.new] = f"from {'the opposite of ' if rename.negated else ''}{say(rename.old)}"
    return building

"""The one resolution: command line > config file > checkpoint > model default > parser default, for every argument.

Pure and total. Values are JSON types; `model_providers.checkpoint.peek_values.megatron_values` turns dtypes and
enumerations back into what Megatron's functions want.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_providers.checkpoint.peek import CheckpointPeek
from server.arguments.classification import COMPUTED_ARGUMENTS, classify
from server.arguments.conflicts import find_conflicts
from server.arguments.derive import (
    Machine,
    derive_architecture,
    derive_lengths,
    derive_machine,
    derive_vocabulary,
)
from server.arguments.detect import ModelKind, detect_model_kind
from server.arguments.language_models import implied_by_language_model
from server.arguments.model_defaults import model_defaults
from server.arguments.option_groups import flag_of
from server.arguments.parser import TypedArguments
from server.arguments.renames import INFERENCE_ARGUMENTS, RENAMES, Renamed, rename_checkpoint_args, rename_typed
from server.arguments.sources import Entries, Entry, choose
from server.arguments.tokenizer_lookup import FoundTokenizer, TokenizerNotFoundError
from server.config import CheckpointInfo, Conflict, ModelKindName, ResolvedDocument, Source

NO_EFFECT = "no effect"
_NOT_ARGUMENTS = frozenset({"help", "help_all"})
# What Megatron's validate_args and training loop add to the saved namespace; no flags.
_RUN_STATE = frozenset(
    {
        "_is_global_batch_size_explicitly_specified",
        "consumed_train_samples",
        "consumed_valid_samples",
        "curr_iteration",
        "data_parallel_size",
        "do_test",
        "do_train",
        "do_valid",
        "expert_gtp_weight_remat_size",
        "gtp_weight_remat_size",
        "iteration",
        "num_floating_point_operations_so_far",
        "rank",
        "skipped_train_samples",
        "transformer_pipeline_model_parallel_size",
        "use_dist_ckpt",
        "use_layer_wise_distributed_optimizer",
        "variable_seq_lengths",
        "virtual_pipeline_model_parallel_size",
        "world_size",
    }
)


def resolve(
    typed: TypedArguments,
    defaults: Mapping[str, Any],
    checkpoint: CheckpointPeek,
    tokenizer: FoundTokenizer | TokenizerNotFoundError,
    machine: Machine,
) -> ResolvedDocument:
    """Every argument in `defaults`, and those that Megatron computes, exactly once."""
    renamed: dict[Source, Renamed] = {
        "command_line": rename_typed(typed.command_line),
        "config_file": rename_typed(typed.config_file),
        "checkpoint": rename_checkpoint_args(checkpoint.args),
    }
    kind = _kind(checkpoint, renamed)
    entries = _choose_all(renamed, defaults, kind.kind)
    if kind.kind == "vlm":
        _imply_language_model(entries)
    _take_tokenizer(entries, tokenizer)
    derive_architecture(entries)
    derive_vocabulary(
        entries,
        checkpoint_rows=checkpoint.vocabulary_rows,
        tokenizer_ids=tokenizer.num_ids if isinstance(tokenizer, FoundTokenizer) else None,
        saved_ranks=checkpoint.tensor_model_parallel_size,
    )
    derive_lengths(entries)
    derive_machine(entries, machine)
    _explain(entries, kind.kind)
    conflicts = [*find_conflicts(entries, kind.kind, machine), *_kind_conflicts(checkpoint, kind)]
    return ResolvedDocument(
        kind=kind.kind,
        reasons=kind.reasons,
        arguments=[entry.resolved() for entry in entries],
        conflicts=conflicts,
        checkpoint=CheckpointInfo(str(checkpoint.path), checkpoint.format, checkpoint.iteration),
    )


def _kind(checkpoint: CheckpointPeek, renamed: Mapping[Source, Renamed]) -> ModelKind:
    if checkpoint.has_args:
        return detect_model_kind(checkpoint.args)
    typed = {**renamed["config_file"].values, **renamed["command_line"].values}
    found = detect_model_kind(typed)
    because = f"{checkpoint.args_file} holds no args, so the kind follows from what was typed"
    return ModelKind(found.kind, [because, *found.reasons] if found.kind == "vlm" else [because])


def _choose_all(renamed: Mapping[Source, Renamed], defaults: Mapping[str, Any], kind: ModelKindName) -> Entries:
    sources: dict[Source, Mapping[str, Any]] = {source: values.values for source, values in renamed.items()}
    sources["default"] = {**dict.fromkeys(COMPUTED_ARGUMENTS), **defaults}
    sources["model"] = {}
    if kind == "vlm":
        sources["model"] = model_defaults(choose("vision_model_type", sources).value)
    entries: dict[str, Entry] = {}
    for name in sources["default"]:
        if name in _NOT_ARGUMENTS:
            continue
        entry = entries[name] = choose(name, sources)
        if entry.source in renamed:
            entry.note(renamed[entry.source].origins.get(name, ""))
    return Entries(entries)


def _imply_language_model(entries: Entries) -> None:
    name = entries["language_model_type"].value
    for argument, value in implied_by_language_model(name).items():
        entries[argument].imply(value, f"implied by language_model_type {name}, whatever else was saved")


def _take_tokenizer(entries: Entries, tokenizer: FoundTokenizer | TokenizerNotFoundError) -> None:
    entry = entries["tokenizer_model"]
    if isinstance(tokenizer, TokenizerNotFoundError):
        entry.note(str(tokenizer))
        return
    entry.derive(str(tokenizer.path), tokenizer.origin)


def _explain(entries: Entries, kind: ModelKindName) -> None:
    """Say of typed arguments why they change nothing."""
    ours = {rename.old: rename.new for rename in INFERENCE_ARGUMENTS}
    for entry in entries:
        if not entry.typed:
            continue
        argument_class = classify(entry.name)
        if entry.name in ours:
            entry.note(f"stands for {flag_of(ours[entry.name])}")
        elif argument_class.effect == "none":
            entry.note(f"{NO_EFFECT}: {argument_class.reason}")
        elif argument_class.category == "vision" and kind == "gpt":
            entry.note("does not apply: the model has no image encoder")


def _kind_conflicts(checkpoint: CheckpointPeek, kind: ModelKind) -> list[Conflict]:
    vision = next((t.name for t in checkpoint.tensors if t.name.startswith("vision_model.")), None)
    if kind.kind == "vlm" or vision is None:
        return []
    message = f"the checkpoint has an image encoder ({vision}), but {kind.reasons[0]}"
    return [Conflict(["language_model_type"], message, "serve a checkpoint whose args name language_model_type")]


def unknown_checkpoint_args(checkpoint: CheckpointPeek, document: ResolvedDocument) -> list[str]:
    """Names that the checkpoint saved and no argument here has, such as those of another Megatron version."""
    known = set(document.values) | {rename.old for rename in RENAMES} | _RUN_STATE
    return sorted(name for name in checkpoint.args if name not in known)

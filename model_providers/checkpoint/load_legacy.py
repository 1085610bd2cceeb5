"""Legacy torch checkpoints: one file per tensor- and pipeline-parallel rank, merged and split again for serving.

How a parameter is split is what Megatron records on it: `partition_dim`, and `partition_stride` (2 where gate and up
projections are each split and then laid side by side).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor, nn

from model_providers.checkpoint.absent_projection import absent_projection
from model_providers.checkpoint.secure import load_weights_only
from model_providers.checkpoint.vocabulary import VOCABULARY_TENSORS
from model_providers.config import ModelConfig
from model_providers.errors import CheckpointError
from model_providers.layer_specs import FUSED_NORM_KEYS

_RANK_DIRECTORY = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_\d+)?$")
_LAYER = re.compile(r"^((?:\w+\.)?)decoder\.layers\.(\d+)\.")  # in LLaVA a part's name comes first
_FILE = "model_optim_rng.pt"

Shards = dict[str, list[Tensor]]


def legacy_state_dict(model: nn.Module, config: ModelConfig) -> dict[str, Tensor]:
    """This rank's shard of every parameter: name -> tensor in the serving dtype, on the serving device."""
    shards = _read_shards(config.checkpoint)
    tied = getattr(model, "share_embeddings_and_output_weights", False)
    tied_copies = ("output_layer.weight", "language_model.output_layer.weight") if tied else ()
    absent = absent_projection(shards, config)
    state = {}
    for name, parameter in model.named_parameters():
        if name.startswith(absent):
            continue
        parts = shards.pop(name, None)
        if parts is None:
            raise CheckpointError(config.checkpoint, f"lacks {name!r}, which its arguments call for")
        shard = _local_shard(name, parameter, parts, config)
        state[name] = shard.to(dtype=config.dtype, device=config.device, copy=True)
    left = sorted(name for name in shards if name not in tied_copies)
    if left:
        raise CheckpointError(
            config.checkpoint,
            f"holds {', '.join(left[:5])} ({len(left)} in all), for which the model that its arguments describe has no "
            "place",
        )
    return state


def _read_shards(checkpoint: Path) -> Shards:
    """Every parameter's shards in tensor-parallel order, under serving names; mapped, so not yet in memory."""
    stages: dict[int, dict[int, Path]] = defaultdict(dict)
    for directory in checkpoint.iterdir():
        if match := _RANK_DIRECTORY.fullmatch(directory.name):
            stages[int(match[2] or 0)][int(match[1])] = directory / _FILE
    shards: Shards = {}
    first_layers: Counter[str] = Counter()
    for stage in sorted(stages):
        ranks = stages[stage]
        if sorted(ranks) != list(range(len(ranks))):
            raise CheckpointError(checkpoint, f"has files of tensor-parallel ranks {sorted(ranks)} only")
        states = [_model_state(ranks[rank]) for rank in range(len(ranks))]
        for name in states[0]:
            if name.endswith("_extra_state") or states[0][name] is None:
                continue
            shards.setdefault(_serving_name(name, first_layers), [state[name] for state in states])
        layers = {match.groups() for name in states[0] if (match := _LAYER.match(name))}
        first_layers.update(part for part, _ in layers)
    return shards


def _model_state(path: Path) -> dict[str, Tensor]:
    state = load_weights_only(path)
    model = state.get("model") if isinstance(state, dict) else None
    if not isinstance(model, dict):
        raise CheckpointError(path, "has no 'model' in it; virtual pipeline stages are not supported")
    if "language_model" in model:
        raise CheckpointError(
            path, "was written by Megatron's older model classes; convert it with Megatron's tools/checkpoint first"
        )
    return model


def _serving_name(name: str, first_layers: Mapping[str, int]) -> str:
    """Number layers over all pipeline stages, and undo Transformer Engine's fused names."""
    if match := _LAYER.match(name):
        part, layer = match.groups()
        name = f"{part}decoder.layers.{int(layer) + first_layers[part]}.{name[match.end() :]}"
    for ours, fused in FUSED_NORM_KEYS.items():
        name = name.replace(fused, ours)
    return name


def _local_shard(name: str, parameter: Any, parts: list[Tensor], config: ModelConfig) -> Tensor:
    tp_size = config.tensor_model_parallel_size
    rank = parallel_state.get_tensor_model_parallel_rank()
    if not getattr(parameter, "tensor_model_parallel", False):
        shard = parts[0]
    else:
        dim, stride = parameter.partition_dim, parameter.partition_stride
        pieces = [torch.cat([part.chunk(stride, dim)[i] for part in parts], dim) for i in range(stride)]
        if name in VOCABULARY_TENSORS:
            pieces = [_padded_rows(pieces[0], parameter.shape[0] * tp_size)]
        shard = torch.cat([piece.chunk(tp_size, dim)[rank] for piece in pieces], dim)
    if shard.shape != parameter.shape:
        raise CheckpointError(
            config.checkpoint,
            f"holds {name!r} of shape {tuple(shard.shape)} on each rank, but its arguments call for "
            f"{tuple(parameter.shape)}",
        )
    return shard


def _padded_rows(weight: Tensor, rows: int) -> Tensor:
    if weight.shape[0] >= rows:
        return weight[:rows]
    return torch.cat([weight, weight.new_zeros(rows - weight.shape[0], weight.shape[1])])

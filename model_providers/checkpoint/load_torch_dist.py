"""torch_dist checkpoints: Megatron's own sharding says which region of which tensor each parameter is."""

from __future__ import annotations

from typing import Any, cast

import torch
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
from torch import Tensor, nn

from model_providers.checkpoint.absent_projection import absent_projection
from model_providers.checkpoint.tensor_reader import TensorReader
from model_providers.checkpoint.vocabulary import VOCABULARY_TENSORS
from model_providers.config import ModelConfig
from model_providers.errors import CheckpointError
from model_providers.layer_specs import FUSED_NORM_KEYS

# What training saves beside the model.
_TRAINING_STATE = ("optimizer.", "chained_", "rng_state", "rerun_state_machine", "opt_param_scheduler")


def torch_dist_state_dict(model: nn.Module, config: ModelConfig) -> dict[str, Tensor]:
    """Read this rank's shard of every parameter: name -> tensor in the serving dtype, on the serving device."""
    with TensorReader(config.checkpoint) as reader:
        sharded = cast(Any, model).sharded_state_dict(metadata=_layout(reader))
        loader = _Loader(reader, config)
        absent = absent_projection(reader.shapes, config)
        state = {
            name: loader.load(entry)
            for name, entry in sharded.items()
            if not isinstance(entry, ShardedObject) and not name.startswith(absent)
        }
        loader.refuse_leftovers()
    return state


def _layout(reader: TensorReader) -> dict[str, Any]:
    """How the writer named its tensors, told from the names: layers stacked or apart, gate and up joined or apart."""
    apart = any("decoder.layers.0." in key for key in reader.shapes)
    singletons = any(key.endswith(("linear_fc1.weight_w", "linear_fc1.weight_v")) for key in reader.shapes)
    metadata: dict[str, Any] = {"non_homogeneous_layers": apart}
    if singletons:
        metadata = {"singleton_local_shards": True}
    return dict(ensure_metadata_has_dp_cp_group(metadata))


class _Loader:
    def __init__(self, reader: TensorReader, config: ModelConfig) -> None:
        self._reader = reader
        self._config = config
        self._consumed: set[str] = set()

    def load(self, entry: ShardedTensor | ShardedTensorFactory) -> Tensor:
        """One parameter; a factory is a parameter stored in parts (gate and up), which it merges itself."""
        if isinstance(entry, ShardedTensorFactory):
            parts = entry.build()
            merged: Tensor = entry.merge_fn(
                {key: self._read(part) for key, part in parts.items()}
                if isinstance(parts, dict)
                else [self._read(part) for part in parts]
            )
            return merged
        return self._read(entry)

    def _read(self, part: ShardedTensor) -> Tensor:
        key = self._stored_key(part.key)
        stored = self._reader.shapes[key]
        self._consumed.add(key)
        out = torch.empty(part.local_shape, dtype=self._config.dtype, device=self._config.device)
        rows = part.local_shape[0] if part.local_shape else 0
        if part.key in VOCABULARY_TENSORS:
            rows = max(0, min(rows, stored[0] - part.global_offset[0]))
            out[rows:].zero_()
            matches = stored[1:] == tuple(part.global_shape[1:])
        else:
            matches = stored == tuple(part.global_shape)
        if not matches:
            raise CheckpointError(
                self._config.checkpoint,
                f"holds {part.key!r} of shape {stored}, but its arguments call for {tuple(part.global_shape)}",
            )
        target = out[:rows] if part.key in VOCABULARY_TENSORS else out
        # Axes that only exist in the global tensor (the layer) have length one here.
        for _ in range(part.prepend_axis_num):
            target = target.unsqueeze(0)
        if target.numel():
            self._reader.read_into(key, tuple(part.global_offset), target)
        return out

    def _stored_key(self, key: str) -> str:
        """A norm has one of two names, by whether the layers that wrote it fuse it into the linear layer after it."""
        names = [key]
        for plain, fused in FUSED_NORM_KEYS.items():
            names += [key.replace(plain, fused), key.replace(fused, plain)]
        for name in names:
            if name in self._reader.shapes:
                return name
        raise CheckpointError(self._config.checkpoint, f"lacks {key!r}, which its arguments call for")

    def refuse_leftovers(self) -> None:
        """Tensors of the model that nothing asked for mean that the arguments describe another model."""
        left = [
            key
            for key in self._reader.shapes
            if key not in self._consumed and not key.startswith(_TRAINING_STATE) and "_extra_state" not in key
        ]
        if left:
            raise CheckpointError(
                self._config.checkpoint,
                f"holds {', '.join(sorted(left)[:5])} ({len(left)} in all), for which the model that its arguments "
                "describe has no place",
            )

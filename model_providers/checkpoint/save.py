"""Write checkpoints that Megatron-LM reads: torch_dist as megatron-core 0.19.2 writes it, and legacy torch.

Both take the parameters of a GPT or LLaVA model whole (TP=1) by Megatron's local-spec names, such as
`decoder.layers.0.input_layernorm.weight` or `vision_model.decoder.layers.0.input_layernorm.weight`, and write them in
`args.params_dtype`. A LLaVA's parts are `language_model.`, `vision_model.` and `vision_projection.`.
"""

from __future__ import annotations

import copy
import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.checkpoint.api import CheckpointException

from model_providers.checkpoint.atomic_directory import atomic_directory
from model_providers.checkpoint.single_process import process_group_of_one, saving_on_cpu
from model_providers.config import ModelConfig
from model_providers.errors import CheckpointError, UnsupportedModelError

TRACKER_FILE = "latest_checkpointed_iteration.txt"
CHECKPOINT_VERSION = 3.0  # Megatron's version of the fused QKV layout: [q.., k, v] per KV group

StateDict = Mapping[str, torch.Tensor]
Iteration = int | Literal["release"]


def save_torch_dist(
    destination: Path, *, state_dict: StateDict, args: Namespace, iteration: Iteration = "release"
) -> Path:
    """Write the torch_dist checkpoint `destination` and return its iteration directory.

    args: all of Megatron's, as `training_args` makes them. Whatever stood at `destination` is replaced, and only by a
    complete checkpoint. Raises CheckpointError when names or shapes of `state_dict` are not those of the model that
    `args` describe, and when writing fails.
    """
    with atomic_directory(destination) as building:
        write_torch_dist(building, state_dict=state_dict, args=args, iteration=iteration)
    return destination / iteration_directory_name(iteration)


def write_torch_dist(root: Path, *, state_dict: StateDict, args: Namespace, iteration: Iteration = "release") -> None:
    """`save_torch_dist` into the existing directory `root`, for a caller that makes the whole atomic itself."""
    from megatron.core import dist_checkpointing, parallel_state

    directory = root / iteration_directory_name(iteration)
    directory.mkdir()
    with process_group_of_one():
        model = _model_holding(state_dict, args, root)
        # As megatron.training.checkpointing.save_checkpoint does; the flags concern layouts of optimiser state.
        content = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        sharded = model.sharded_state_dict(metadata={**content, "dp_cp_group": group})
        state = {**_common_state(args, iteration), "model": sharded}
        try:
            with saving_on_cpu():
                dist_checkpointing.save(state, str(directory), content_metadata=content)
        except CheckpointException as error:  # not an Exception; its failures are (error, traceback) by rank
            reasons = "; ".join(str(failure) for failure, _ in error.failures.values())
            free = shutil.disk_usage(root).free
            raise CheckpointError(root, f"could not be written, with {free} bytes free there: {reasons}") from error
    _write_tracker(root, iteration)


def save_legacy_torch(
    destination: Path,
    *,
    state_dict: StateDict,
    args: Namespace,
    iteration: Iteration = "release",
    tensor_model_parallel_size: int = 1,
) -> Path:
    """Write the legacy torch checkpoint `destination`, a `mp_rank_XX/model_optim_rng.pt` per tensor-parallel rank.

    Names are those of the layers in `args.transformer_impl`: Transformer Engine fuses each norm into the linear layer
    after it. Otherwise as `save_torch_dist`; raises CheckpointError, too, when a dimension cannot be divided.
    """
    args = copy.copy(args)
    args.tensor_model_parallel_size = args.world_size = tensor_model_parallel_size
    args.ckpt_format, args.use_dist_ckpt = "torch", False
    with atomic_directory(destination) as building, process_group_of_one():
        # Loading replaces the parameters, and with them what Megatron's layers noted about how to cut them.
        layout = dict(_model_on_meta(state_dict, args).named_parameters())
        whole = dict(_model_holding(state_dict, args, destination).named_parameters())
        for rank in range(tensor_model_parallel_size):
            directory = building / iteration_directory_name(iteration) / f"mp_rank_{rank:02d}"
            directory.mkdir(parents=True)
            shard = {
                _legacy_name(name, args): _shard(name, whole[name], layout[name], rank, args.tensor_model_parallel_size)
                for name in whole
            }
            torch.save({**_common_state(args, iteration), "model": shard}, directory / "model_optim_rng.pt")
        _write_tracker(building, iteration)
    return destination / iteration_directory_name(iteration)


def iteration_directory_name(iteration: Iteration) -> str:
    """`release`, or `iter_0000042`."""
    return "release" if iteration == "release" else f"iter_{iteration:07d}"


def _common_state(args: Namespace, iteration: Iteration) -> dict[str, Any]:
    return {
        "args": args,
        "checkpoint_version": CHECKPOINT_VERSION,
        "iteration": 0 if iteration == "release" else iteration,
        "num_floating_point_operations_so_far": 0,
    }


def _write_tracker(root: Path, iteration: Iteration) -> None:
    (root / TRACKER_FILE).write_text(str(iteration))


def _model_holding(state_dict: StateDict, args: Namespace, blamed: Path) -> Any:
    """Megatron's model for `args`, its parameters being those of `state_dict` (no copy where the type fits)."""
    model = _model_on_meta(state_dict, args)
    cast = {name: tensor.to("cpu", args.params_dtype).contiguous() for name, tensor in state_dict.items()}
    try:
        outcome = model.load_state_dict(cast, strict=False, assign=True)
    except RuntimeError as error:  # shapes that differ; the message names them
        raise CheckpointError(blamed, str(error)) from error
    missing = [name for name in outcome.missing_keys if not name.endswith("_extra_state")]
    if missing or outcome.unexpected_keys:
        raise CheckpointError(
            blamed, f"tensors missing for this model: {missing}; not part of it: {outcome.unexpected_keys}"
        )
    return model


def _model_on_meta(state_dict: StateDict, args: Namespace) -> Any:
    if any(name.startswith("vision_model.") for name in state_dict):
        return _llava_model_on_meta(args)
    return _gpt_model_on_meta(args)


def _llava_model_on_meta(args: Namespace) -> Any:
    from model_providers.llava import construct

    return construct(
        ModelConfig(
            values=vars(args),
            checkpoint=Path(),  # construction reads nothing
            checkpoint_format="torch_dist",
            dtype=args.params_dtype,
            device=torch.device("cpu"),
            tensor_model_parallel_size=1,
            vocab_size=args.padded_vocab_size,
            max_model_len=args.max_position_embeddings,
            packed_linears=False,
        )
    )


def _gpt_model_on_meta(args: Namespace) -> Any:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.training.argument_utils import core_transformer_config_from_args

    if args.num_experts is not None:
        raise UnsupportedModelError("num_experts", "mixture-of-experts models cannot be written here")
    args = copy.copy(args)
    # Names and shapes do not depend on these; building without Transformer Engine and apex does.
    args.use_cpu_initialization, args.perform_initialization = True, False
    args.gradient_accumulation_fusion = args.bias_dropout_fusion = args.apply_rope_fusion = False
    args.no_persist_layer_norm = True
    args.transformer_impl, args.tensor_model_parallel_size = "local", 1
    with torch.device("meta"):
        return GPTModel(
            config=core_transformer_config_from_args(args),
            transformer_layer_spec=get_gpt_layer_local_spec(
                normalization=args.normalization, qk_layernorm=args.qk_layernorm
            ),
            vocab_size=args.padded_vocab_size,
            max_sequence_length=args.max_position_embeddings,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type,
            rotary_percent=args.rotary_percent,
            rotary_base=args.rotary_base,
            rope_scaling=args.use_rope_scaling,
            rope_scaling_factor=args.rope_scaling_factor,
        )


def _legacy_name(name: str, args: Namespace) -> str:
    from model_providers.layer_specs import FUSED_NORM_KEYS

    if args.transformer_impl == "transformer_engine":
        for local, fused in FUSED_NORM_KEYS.items():
            name = name.replace(local, fused)
    return name


def _shard(name: str, parameter: torch.Tensor, layout: Any, rank: int, size: int) -> torch.Tensor:
    """Rank `rank`'s part as Megatron's layers cut it: `partition_stride` pieces along `partition_dim`, each divided."""
    whole = parameter.detach()
    if not getattr(layout, "tensor_model_parallel", False):
        return whole
    dim, stride = layout.partition_dim, layout.partition_stride
    if whole.shape[dim] % (stride * size):
        raise CheckpointError(name, f"dimension {dim} of {tuple(whole.shape)} cannot be divided among {size} ranks")
    return torch.cat([piece.chunk(size, dim)[rank] for piece in whole.chunk(stride, dim)], dim)

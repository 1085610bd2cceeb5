"""Fills a model built on the meta device with a checkpoint's weights, strictly, at any tensor-parallel size."""

from __future__ import annotations

from torch import Tensor, nn

from model_providers.checkpoint.absent_projection import zeros_for_absent_projection
from model_providers.checkpoint.load_legacy import legacy_state_dict
from model_providers.checkpoint.load_torch_dist import torch_dist_state_dict
from model_providers.config import ModelConfig
from model_providers.errors import CheckpointError


def load_weights(model: nn.Module, config: ModelConfig) -> None:
    """Give every parameter its values on this rank; they replace the meta tensors, so nothing is held twice.

    `model` is a Megatron module (it has `sharded_state_dict`). Raises CheckpointError for a missing tensor, one of
    another shape, and one that the model has no place for.
    """
    read = torch_dist_state_dict if config.checkpoint_format == "torch_dist" else legacy_state_dict
    state: dict[str, Tensor] = read(model, config)
    state |= zeros_for_absent_projection(model, state, config)
    missing = [name for name, _ in model.named_parameters() if name not in state]
    if missing:
        raise CheckpointError(config.checkpoint, f"lacks {listed(missing)} of the model that its arguments describe")
    parameters = {name: nn.Parameter(tensor, requires_grad=False) for name, tensor in state.items()}
    model.load_state_dict(parameters, strict=False, assign=True)
    unfilled = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    assert not unfilled, f"parameters without values after loading: {unfilled}"


def listed(names: list[str], most: int = 5) -> str:
    """The first few names in words."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")

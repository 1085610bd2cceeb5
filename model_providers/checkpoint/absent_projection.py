"""Checkpoints of a vision-language model put together from its halves, before the projection between them is trained.

Megatron loads one where `allow_missing_vision_projection_checkpoint` says so, with whatever the projection was
initialised to. Here it becomes zeros: images then say nothing, rather than noise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from model_providers.config import ModelConfig

PROJECTION: Final = "vision_projection."
_ARGUMENT: Final = "allow_missing_vision_projection_checkpoint"

logger = logging.getLogger(__name__)


def absent_projection(stored: Iterable[str], config: ModelConfig) -> tuple[str, ...]:
    """Prefixes of parameters to do without: the projection's where that is allowed and not one of them is stored."""
    if not config.values.get(_ARGUMENT) or any(name.startswith(PROJECTION) for name in stored):
        return ()
    return (PROJECTION,)


def zeros_for_absent_projection(model: nn.Module, state: Mapping[str, Any], config: ModelConfig) -> dict[str, Tensor]:
    """Zeros for the projection's parameters if they were done without, and a warning; otherwise nothing."""
    if not config.values.get(_ARGUMENT) or any(name.startswith(PROJECTION) for name in state):
        return {}
    logger.warning(
        "THE CHECKPOINT %s HAS NO VISION PROJECTION, which %s allows: the model cannot see. Answers about images will "
        "be wrong; text alone is unaffected.",
        config.checkpoint,
        _ARGUMENT,
    )
    return {
        name: torch.zeros(parameter.shape, dtype=config.dtype, device=config.device)
        for name, parameter in model.named_parameters()
        if name.startswith(PROJECTION)
    }

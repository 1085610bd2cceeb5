"""What has to happen to a module's parts once their weights are loaded."""

from __future__ import annotations

from torch import nn

from model_providers.backends.collectives import Collectives
from model_providers.backends.linear import ServingColumnParallelLinear, ServingRowParallelLinear
from model_providers.backends.norm import ServingNorm
from model_providers.backends.packed_weight import can_pack
from model_providers.config import ModelConfig
from model_providers.kernels.library import kernels_for


def packs_linears(config: ModelConfig) -> bool:
    """Whether this model's linear layers are to be packed, and can be."""
    return config.packed_linears and can_pack(config.dtype, config.device)


def prepare_modules(root: nn.Module, config: ModelConfig, collectives: Collectives) -> None:
    """Settle how norms compute and linear layers exchange; where asked for and possible, pack the latter's weights."""
    pack = packs_linears(config)
    kernels = kernels_for(config.kernels, config.dtype, config.device)
    for module in root.modules():
        if isinstance(module, ServingNorm):
            module.prepare_for_serving(kernels)
        if isinstance(module, ServingColumnParallelLinear | ServingRowParallelLinear):
            module.collectives = collectives
            if pack:
                module.pack(kernels, batch_invariant=config.batch_invariant)

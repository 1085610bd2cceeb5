"""What has to happen to a module's parts once their weights are loaded."""

from __future__ import annotations

from torch import Tensor, nn

from model_providers.backends.collectives import Collectives
from model_providers.backends.linear import ServingColumnParallelLinear, ServingRowParallelLinear
from model_providers.backends.norm import ServingNorm
from model_providers.backends.packed_weight import PackedWeight, can_pack, pack_weight
from model_providers.config import ModelConfig
from model_providers.errors import CheckpointError, UnsupportedModelError
from model_providers.kernels.library import kernels_for


def packs_linears(config: ModelConfig) -> bool:
    """Whether this model's linear layers are to be packed, and can be."""
    return config.packed_linears and can_pack(config.dtype, config.device)


def packed(name: str, weight: Tensor, config: ModelConfig) -> PackedWeight:
    """The weight as the configuration wants it; `packs_linears` has said yes.

    Raises CheckpointError when it cannot be quantized.
    """
    kernels = kernels_for(config.kernels, config.dtype, config.device)
    try:
        return pack_weight(weight, kernels, batch_invariant=config.batch_invariant, quantize=config.quantize)
    except ValueError as error:
        raise CheckpointError(config.checkpoint, f"{name} {error}; serve it without --quantize") from error


def prepare_modules(root: nn.Module, config: ModelConfig, collectives: Collectives) -> None:
    """Settle how norms compute and linear layers exchange; where asked for and possible, pack the latter's weights.

    Raises UnsupportedModelError when weights are to be quantized and cannot be here; what `packed` raises.
    """
    pack = packs_linears(config)
    kernels = kernels_for(config.kernels, config.dtype, config.device)
    if config.quantize != "none" and (kernels is None or not pack):
        raise UnsupportedModelError(
            "quantize",
            f"{config.quantize} needs packed linear layers and the CPU kernels, which are not there; build them with "
            "`python -m model_providers.kernels.build`, or serve without --quantize",
        )
    for name, module in root.named_modules():
        if isinstance(module, ServingNorm):
            module.prepare_for_serving(kernels)
        if isinstance(module, ServingColumnParallelLinear | ServingRowParallelLinear):
            module.collectives = collectives
            if pack:
                module.replace_weight(packed(f"{name}.weight", module.weight, config))


def weights_bytes(root: nn.Module) -> int:
    """Memory of the parameters in the form in which they are served.

    A tied output head's packed copy is no parameter and is not counted; a quantized one takes a quarter of fp32's size.
    """
    plain = sum(parameter.nbytes for parameter in root.parameters() if not parameter.is_meta)
    linears = (m for m in root.modules() if isinstance(m, ServingColumnParallelLinear | ServingRowParallelLinear))
    return plain + sum(linear.packed.nbytes for linear in linears if linear.packed is not None)

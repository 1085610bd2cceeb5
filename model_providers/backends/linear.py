"""Column- and row-parallel linear layers for serving: Megatron's parameters and sharding, our multiplication."""

from __future__ import annotations

from typing import Any

from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from torch import Tensor, nn
from torch.nn.functional import linear

from model_providers.backends.collectives import Collectives
from model_providers.backends.packed_weight import PackedWeight


class _Multiplies:
    """Mixed into Megatron's parallel linears: owns the packed weight and keeps the state dict truthful.

    After packing, the `weight` parameter stays in place as a shape without storage (meta), and `state_dict()` gives
    the values back from the packed form, so what serves still has Megatron's keys, shapes and numbers (a quantized
    weight's are those that it multiplies by).
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    packed: PackedWeight | None = None
    collectives: Collectives  # of tp_group, set by the provider once the model is built

    def replace_weight(self, packed: PackedWeight) -> None:
        """Multiply by the packed form of the plain weight, whose memory is freed."""
        self.packed = packed
        self.weight = nn.Parameter(self.weight.detach().to("meta"), requires_grad=False)

    @property
    def bias_of_product(self) -> Tensor | None:
        """What `product` is to add."""
        return self.bias

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (T, in) -> (T, out) of this rank's shard."""
        if self.packed is not None:
            return self.packed.multiply(x, bias)
        return linear(x, self.weight, bias)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        if self.packed is not None:
            destination[prefix + "weight"] = self.packed.unpacked()


class ServingColumnParallelLinear(_Multiplies, ColumnParallelLinear):  # type: ignore[misc]
    """Y = X A^T + b with A split by rows over the tensor-parallel ranks; the output stays split."""

    def apply(self, x: Tensor) -> Tensor:
        """(T, in) -> (T, out / tensor_parallel_size)."""
        return self.product(x, self.bias)

    def apply_gathered(self, x: Tensor) -> Tensor:
        """(T, in) -> (T, out), equal on all ranks."""
        shard = self.apply(x)
        return shard.contiguous() if self.tp_group.size() == 1 else self.collectives.all_gather(shard)


class ServingRowParallelLinear(_Multiplies, RowParallelLinear):  # type: ignore[misc]
    """Y = X A^T + b with A split by columns; partial products are summed over the ranks, the bias is added once."""

    def apply(self, x: Tensor) -> Tensor:
        """(T, in / tensor_parallel_size) -> (T, out), equal on all ranks."""
        return self.sum_over_ranks(self.product(x, self.bias_of_product))

    @property
    def bias_of_product(self) -> Tensor | None:
        """What `product` is to add: with several ranks nothing, for the bias is added once."""
        return self.bias if self.tp_group.size() == 1 else None

    def sum_over_ranks(self, part: Tensor) -> Tensor:
        """The products of all ranks added up, and the bias. May use part's memory for it."""
        if self.tp_group.size() == 1:
            return part
        out = self.collectives.all_reduce(part)
        return out if self.bias is None else out + self.bias

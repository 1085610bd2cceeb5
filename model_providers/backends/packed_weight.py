"""Weights of linear layers, rewritten once into the layout that multiplies fastest on a CPU ("packed").

Packed products measure two to three times faster than plain ones from two rows up. oneDNN's kernels are the fastest
where the CPU has dot products of bfloat16. Elsewhere oneDNN would have to keep bfloat16 weights as float32, so our own
kernel takes over: it reads them as they are, which halves the memory and what a decode step must read. Quantized ones
always take ours.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from model_providers.backends.quantized_weight import QuantizedWeight
from model_providers.config import Quantization
from model_providers.kernels.decoder_layer import Linear
from model_providers.kernels.library import Kernels

# Numbers of rows at which products are compared, the last one with those before it.
_PROBED_ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)


class PackedWeight(Protocol):
    """A weight (out, in)."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes, up to what fills up a layout."""
        ...

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (T, in) -> (T, out) in x's dtype, which is the weight's."""
        ...

    def unpacked(self) -> Tensor:
        """The weight as it was before packing, up to what quantizing took."""
        ...


class PanelWeight:
    """In the panels of our own kernel, for which a row's bits never depend on the number of rows."""

    def __init__(self, weight: Tensor, kernels: Kernels) -> None:
        self._outputs = weight.shape[0]
        self._kernels = kernels
        self._panels = kernels.pack_linear(weight.detach().contiguous())

    @property
    def nbytes(self) -> int:
        """See `PackedWeight.nbytes`."""
        return self._outputs * self._panels.shape[1] * self._panels.itemsize

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `PackedWeight.multiply`."""
        return self._kernels.linear(x.contiguous(), self._panels, self._outputs, bias)

    def pointers(self, bias: Tensor | None) -> Linear:
        """As the kernels read it; valid while this object and the bias live."""
        return Linear.of(self._panels, None, self._outputs, bias)

    def unpacked(self) -> Tensor:
        """See `PackedWeight.unpacked`."""
        return self._kernels.unpack_linear(self._panels, self._outputs)


class BlockedWeight:
    """In oneDNN's blocked layout; as float32 where the CPU has no dot products of bfloat16.

    The products are exact then, and the sums at least as precise as a bfloat16 kernel's. With batch_invariant, a row of
    the result has the same bits whatever the number of rows: on some CPUs oneDNN takes other kernels for very few of
    them, so where that shows, rows of zeros are added.
    """

    def __init__(self, weight: Tensor, *, batch_invariant: bool) -> None:
        self.dtype = weight.dtype
        native = weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self.compute_dtype = weight.dtype if native else torch.float32
        # The batch size is only a hint for the choice of layout.
        self._blocked = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(self.compute_dtype), 64)
        self._least_rows = 1
        if batch_invariant:
            self._least_rows = _least_rows(self, weight.shape, torch.get_num_threads())

    @property
    def nbytes(self) -> int:
        """See `PackedWeight.nbytes`."""
        return int(self._blocked.numel()) * self.compute_dtype.itemsize

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `PackedWeight.multiply`."""
        rows = x.shape[0]
        if rows < self._least_rows:
            return self._product(pad(x, (0, 0, 0, self._least_rows - rows)), bias)[:rows]
        return self._product(x, bias)

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.compute_dtype == self.dtype:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._blocked, bias, "none", [], "")
            return out
        bias = None if bias is None else bias.to(self.compute_dtype)
        out = torch.ops.mkldnn._linear_pointwise(x.to(self.compute_dtype), self._blocked, bias, "none", [], "")
        return out.to(self.dtype)

    def unpacked(self) -> Tensor:
        """See `PackedWeight.unpacked`."""
        weight: Tensor = self._blocked.to_dense().to(self.dtype)
        return weight


_LEAST_ROWS: dict[tuple[torch.Size, torch.dtype, int], int] = {}


def _least_rows(weight: BlockedWeight, shape: torch.Size, threads: int) -> int:
    """From how many rows on more rows change nothing, found out once for each shape."""
    key = (shape, weight.compute_dtype, threads)
    if key not in _LEAST_ROWS:
        x = torch.randn(_PROBED_ROWS[-1], shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
        expected = weight.multiply(x, None)
        differing = [rows for rows in _PROBED_ROWS if not torch.equal(weight.multiply(x[:rows], None), expected[:rows])]
        _LEAST_ROWS[key] = next(rows for rows in _PROBED_ROWS if rows > max(differing, default=0))
    return _LEAST_ROWS[key]


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights of this kind can be packed on this machine."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)


def pack_weight(
    weight: Tensor, kernels: Kernels | None, *, batch_invariant: bool, quantize: Quantization = "none"
) -> PackedWeight:
    """In the layout that is fastest here. `can_pack` has said yes, and with quantize there are kernels.

    Raises ValueError for a weight that is not finite and therefore cannot be quantized.
    """
    if quantize == "int8":
        assert kernels is not None, "checked before any weight is packed"
        return QuantizedWeight(weight, kernels)
    if kernels is not None and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return PanelWeight(weight, kernels)
    return BlockedWeight(weight, batch_invariant=batch_invariant)

"""Weights of linear layers as 8-bit integers with a scale for each output, for CPUs.

A decode step of few sequences does little else than read the weights, so a quarter of the bytes is a good part of the
time. Activations stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model_providers.kernels.decoder_layer import Linear
from model_providers.kernels.library import Kernels


class QuantizedWeight:
    """A `PackedWeight` in the panels of our own kernel: a row's bits never depend on the number of rows.

    Symmetric and rounded to nearest: each weight is within half of its output's scale, the largest one / 127.
    """

    def __init__(self, weight: Tensor, kernels: Kernels) -> None:
        """weight: (out, in). Raises ValueError when not all of it is finite."""
        self._outputs = weight.shape[0]
        self._dtype = weight.dtype
        self._kernels = kernels
        self._panels, self._scales = kernels.quantize_linear(weight.detach().contiguous())
        if not bool(torch.isfinite(self._scales).all()):
            raise ValueError("holds numbers that are not finite")

    @property
    def nbytes(self) -> int:
        """See `PackedWeight.nbytes`."""
        return self._panels.nbytes + self._scales.nbytes

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `PackedWeight.multiply`. Sums are added up in float32, and so is the bias."""
        return self._kernels.quantized_linear(x.contiguous(), self._panels, self._scales, self._outputs, bias)

    def pointers(self, bias: Tensor | None) -> Linear:
        """As the kernels read it; valid while this object and the bias live."""
        return Linear.of(self._panels, self._scales, self._outputs, bias)

    def unpacked(self) -> Tensor:
        """The weight as it multiplies, integers times scales, in its old dtype; what rounding took is gone."""
        integers = self._kernels.unpack_linear(self._panels, self._outputs)
        return (integers * self._scales[: self._outputs, None]).to(self._dtype)

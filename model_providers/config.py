"""What a provider needs to know to build and load one model."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

CheckpointFormat = Literal["torch_dist", "torch"]
Quantization = Literal["none", "int8"]


@dataclass(frozen=True)
class ModelConfig:
    """One model on one rank.

    values: every resolved argument by its argparse destination (Megatron's names).
    checkpoint: the iteration directory. vocab_size: token ids below it exist; rows at and beyond it are padding.
    packed_linears: keep CPU linear weights in a packed layout, see `backends.packed_weight`. kernels: which of our CPU
    kernels to use, as `kernels.library.load_kernels` takes it. batch_invariant: a row's result must not depend, to the
    last bit, on the rows beside it. quantize: how the language model keeps the weights of its linear layers and output
    head; each rank its own part, so the scales of a row-parallel one are those of the rank's inputs. all_reduce: how
    tensor-parallel ranks exchange, as `backends.collectives` takes it. rank_timeout: seconds that a rank waits for
    another.
    """

    values: Mapping[str, Any]
    checkpoint: Path
    checkpoint_format: CheckpointFormat
    dtype: torch.dtype
    device: torch.device
    tensor_model_parallel_size: int
    vocab_size: int
    max_model_len: int
    packed_linears: bool
    kernels: str = "auto"
    batch_invariant: bool = True
    all_reduce: str = "auto"
    rank_timeout: float = 60.0
    quantize: Quantization = "none"

    @property
    def namespace(self) -> Namespace:
        """A fresh argparse namespace, for the Megatron functions that want one."""
        return Namespace(**self.values)

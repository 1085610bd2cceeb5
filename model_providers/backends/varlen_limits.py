"""What `varlen_attn` of the pinned torch can serve, in plain values: whoever resolves arguments asks too.

Source: torch 2.13, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (mha_varlen_fwd, FlashAttention 2).
"""

from __future__ import annotations

BLOCK_MULTIPLE = 256
"""FlashAttention 2 takes blocks of the KV cache of this many tokens, or of a multiple."""

_LARGEST_HEAD_DIM = 256
_HEAD_DIM_MULTIPLE = 8
_AMPERE = (8, 0)


def varlen_serves(*, half_precision: bool, head_dim: int, capability: tuple[int, int] | None) -> bool:
    """half_precision: fp16 or bf16. capability: compute capability of the NVIDIA GPU, None where there is none."""
    return (
        capability is not None
        and capability >= _AMPERE
        and half_precision
        and head_dim <= _LARGEST_HEAD_DIM
        and head_dim % _HEAD_DIM_MULTIPLE == 0
    )

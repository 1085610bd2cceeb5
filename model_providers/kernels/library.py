"""Loads the compiled kernels that suit this CPU, and calls them on tensors.

Tensors are dense, on the CPU, in float32 or bfloat16; whoever calls sees to that. Results do not depend on the number
of threads, and no row's result depends on the other rows.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

# Before any library of ours is loaded: torch brings the OpenMP library that they are bound to.
import torch
from torch import Tensor

from model_providers.errors import ModelProviderError
from model_providers.kernels.attention_step import AttentionStep
from model_providers.kernels.build import TARGETS, library_path
from model_providers.kernels.decoder_layer import DecoderLayer, LayerBuffers
from model_providers.kernels.rank_group import RankGroup

logger = logging.getLogger(__name__)

# Outputs in one panel of a packed weight: kChunk in source/tile.h.
PANEL = 16

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}

_POINTER, _INT32, _INT64, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float
_STEP = ctypes.POINTER(AttentionStep)
_BUFFERS = ctypes.POINTER(LayerBuffers)
_LAYER = ctypes.POINTER(DecoderLayer)
_GROUP = ctypes.POINTER(RankGroup)
_ACTIVATION = (_POINTER, _POINTER, _INT64, _INT32)
# Functions that exist once per dtype, and their arguments.
_SIGNATURES = {
    "attend": (_STEP, _POINTER, _POINTER, _POINTER, _POINTER),
    "write_cache": (_STEP, _POINTER, _POINTER, _POINTER),
    "attend_images": (_POINTER,) * 4 + (_INT32,) * 3 + (_FLOAT,),
    "add_norm": (_POINTER,) * 6 + (_INT64, _INT32, _FLOAT),
    "pack_linear": (_POINTER, _POINTER, _INT32, _INT32),
    "linear": (_POINTER,) * 5 + (_INT32,) * 3,
    "quantize_linear": (_POINTER,) * 3 + (_INT32,) * 2,
    "quantized_linear": (_POINTER,) * 6 + (_INT32,) * 3,
    "silu_gated": _ACTIVATION,
    "quick_gelu_gated": _ACTIVATION,
    "silu": _ACTIVATION,
    "quick_gelu": _ACTIVATION,
    "gelu": _ACTIVATION,
    "gelu_tanh": _ACTIVATION,
    "run_layers": (_LAYER, _INT32, _BUFFERS, _STEP),
    "attention_half": (_LAYER, _BUFFERS, _STEP),
    "mlp_half": (_LAYER, _BUFFERS),
    "all_reduce": (_GROUP, _POINTER, _INT64),
}


class CallSeconds:
    """total: seconds spent in a library so far."""

    total = 0.0

    def around(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function, whose time is added."""

        def timed(*arguments: Any) -> None:
            started = time.perf_counter()
            function(*arguments)
            self.total += time.perf_counter() - started

        return timed


class Kernels:
    """The library of one target. Each public function has its plain torch counterpart in the tests."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._library = ctypes.CDLL(str(library_path(target)))
        self._library.bound_attention_plan.argtypes = (_STEP, _POINTER)
        self._library.plan_attention.argtypes = (_STEP, _INT32)
        self._functions = {
            (name, dtype): self._function(f"{name}_{suffix}", arguments)
            for name, arguments in _SIGNATURES.items()
            for dtype, suffix in DTYPES.items()
        }
        self._log_sum_exp = self._function("log_sum_exp_f32", (_POINTER, _INT64, _POINTER, _INT64, _INT64))
        self._largest = self._function("largest_f32", (_POINTER, _INT64, _POINTER, _POINTER, _INT64, _INT64))
        self._gather_shards = self._function("gather_shards", (_GROUP, _POINTER, _POINTER, _INT64, _INT64))

    def _function(self, name: str, arguments: tuple[type, ...]) -> Callable[..., None]:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise ModelProviderError(
                f"the {self.target} kernels were built from other sources; `python -m model_providers.kernels.build` "
                "builds them anew"
            ) from None
        function.argtypes = arguments
        function.restype = None
        return function  # type: ignore[no-any-return]

    def add_up_seconds(self) -> CallSeconds:
        """What calls of the functions that compute take from now on; for benchmarks, as it costs a little itself."""
        seconds = CallSeconds()
        self._functions = {key: seconds.around(function) for key, function in self._functions.items()}
        self._log_sum_exp, self._largest = seconds.around(self._log_sum_exp), seconds.around(self._largest)
        return seconds

    def plan_attention(self, step: AttentionStep) -> None:
        """Cut a step into items of work, allocating the arrays that they need."""
        bounds = (ctypes.c_int32 * 2)()
        self._library.bound_attention_plan(step, bounds)
        step.allocate(num_items=bounds[0], num_partials=bounds[1])
        self._library.plan_attention(step, torch.get_num_threads())

    def attend(self, step: AttentionStep, qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Rotate and cache the new keys, cache the new values, attend.

        qkv: (T, kv_heads, group + 2, head_dim), per KV head its queries, key and value. keys (blocks, kv_heads,
        head_dim, block_size) and values (blocks, kv_heads, block_size, head_dim): one layer's cache -> (T, heads *
        head_dim).
        """
        tokens, kv_heads, width, head_dim = qkv.shape
        out = qkv.new_empty(tokens, kv_heads * (width - 2) * head_dim)
        new, k, v = qkv.data_ptr(), keys.data_ptr(), values.data_ptr()
        self._functions["write_cache", qkv.dtype](step, new, k, v)
        self._functions["attend", qkv.dtype](step, new, k, v, out.data_ptr())
        return out

    def attend_images(self, qkv: Tensor, starts: Tensor, scale: float) -> Tensor:
        """Attention of every token to all tokens of its own image.

        qkv: (T, heads, 3, head_dim), per head its query, key and value. starts: (images + 1,) int32, where each image's
        tokens begin, and T. scale: what scores are multiplied by -> (T, heads * head_dim).
        """
        tokens, heads, _, head_dim = qkv.shape
        images = len(starts) - 1
        out = qkv.new_empty(tokens, heads * head_dim)
        # What the kernel rewrites keys and values into, and how it pads them: source/image_attention.cpp.
        per_token = heads * (head_dim + -(-head_dim // PANEL) * PANEL)
        rewritten = torch.empty((tokens + images * (PANEL - 1)) * per_token)
        pointers = (tensor.data_ptr() for tensor in (qkv, starts, rewritten, out))
        self._functions["attend_images", qkv.dtype](*pointers, images, heads, head_dim, scale)
        return out

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """RMSNorm, or with a bias LayerNorm, over the last dimension of x."""
        out = torch.empty_like(x)
        self._add_norm(x, None, weight, bias, None, out, eps)
        return out

    def add_norm(
        self, residual: Tensor, update: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(residual + update, its norm)."""
        total, out = torch.empty_like(residual), torch.empty_like(residual)
        self._add_norm(residual, update, weight, bias, total, out, eps)
        return total, out

    def _add_norm(
        self,
        residual: Tensor,
        update: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        total: Tensor | None,
        out: Tensor,
        eps: float,
    ) -> None:
        width = residual.shape[-1]
        self._functions["add_norm", residual.dtype](
            residual.data_ptr(),
            None if update is None else update.data_ptr(),
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            None if total is None else total.data_ptr(),
            out.data_ptr(),
            residual.numel() // width,
            width,
            eps,
        )

    def pack_linear(self, weight: Tensor) -> Tensor:
        """A weight (outputs, inputs) as `linear` reads it: (panels, inputs, 16), outputs padded with zeros."""
        outputs, inputs = weight.shape
        panels = weight.new_empty(-(-outputs // PANEL), inputs, PANEL)
        self._functions["pack_linear", weight.dtype](weight.data_ptr(), panels.data_ptr(), outputs, inputs)
        return panels

    @staticmethod
    def unpack_linear(panels: Tensor, outputs: int) -> Tensor:
        """Inverse of `pack_linear`."""
        return panels.transpose(1, 2).reshape(-1, panels.shape[1])[:outputs].contiguous()

    def linear(self, x: Tensor, panels: Tensor, outputs: int, bias: Tensor | None) -> Tensor:
        """x (rows, inputs) times a packed weight -> (rows, outputs), all of one dtype, added up in float32."""
        return self._multiply("linear", x, (panels,), outputs, bias)

    def quantize_linear(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """A weight (outputs, inputs) as `quantized_linear` reads it: int8 (panels, inputs, 16), and float32 scales.

        There is a scale for each output, outputs padded with zeros: the largest weight / 127, 0 where that is below
        float32's normal numbers, NaN where a weight is not finite. `unpack_linear` gives the integers back.
        """
        outputs, inputs = weight.shape
        panels = torch.empty(-(-outputs // PANEL), inputs, PANEL, dtype=torch.int8)
        scales = torch.empty(panels.shape[0] * PANEL)
        self._functions["quantize_linear", weight.dtype](
            weight.data_ptr(), panels.data_ptr(), scales.data_ptr(), outputs, inputs
        )
        return panels, scales

    def quantized_linear(self, x: Tensor, panels: Tensor, scales: Tensor, outputs: int, bias: Tensor | None) -> Tensor:
        """x (rows, inputs) times a quantized weight -> (rows, outputs) in x's dtype, added up in float32."""
        return self._multiply("quantized_linear", x, (panels, scales), outputs, bias)

    def _multiply(self, name: str, x: Tensor, weight: Sequence[Tensor], outputs: int, bias: Tensor | None) -> Tensor:
        rows, inputs = x.shape
        out = x.new_empty(rows, outputs)
        scratch = None if x.dtype == torch.float32 else torch.empty(rows, inputs)
        self._functions[name, x.dtype](
            x.data_ptr(),
            *(part.data_ptr() for part in weight),
            None if bias is None else bias.data_ptr(),
            None if scratch is None else scratch.data_ptr(),
            out.data_ptr(),
            rows,
            outputs,
            inputs,
        )
        return out

    def silu_gated(self, x: Tensor) -> Tensor:
        """(rows, 2 * width), gate and up side by side -> silu(gate) * up, (rows, width)."""
        return self._gated("silu_gated", x)

    def quick_gelu_gated(self, x: Tensor) -> Tensor:
        """(rows, 2 * width), gate and up side by side -> gate * sigmoid(1.702 gate) * up, (rows, width)."""
        return self._gated("quick_gelu_gated", x)

    def _gated(self, name: str, x: Tensor) -> Tensor:
        rows, width = x.shape[0], x.shape[1] // 2
        out = x.new_empty(rows, width)
        self._functions[name, x.dtype](x.data_ptr(), out.data_ptr(), rows, width)
        return out

    def silu(self, x: Tensor) -> Tensor:
        """x * sigmoid(x) of a matrix."""
        return self._plain("silu", x)

    def quick_gelu(self, x: Tensor) -> Tensor:
        """x * sigmoid(1.702 x) of a matrix."""
        return self._plain("quick_gelu", x)

    def gelu(self, x: Tensor, *, tanh: bool) -> Tensor:
        """GELU of a matrix, exactly (within 1.5e-7) or by the tanh approximation."""
        return self._plain("gelu_tanh" if tanh else "gelu", x)

    def _plain(self, name: str, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        self._functions[name, x.dtype](x.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1])
        return out

    def run_layers(
        self,
        layers: ctypes.Array[DecoderLayer],
        count: int,
        buffers: LayerBuffers,
        step: AttentionStep,
        dtype: torch.dtype,
    ) -> None:
        """The first `count` layers of a decoder; residual and update in `buffers` are read and written.

        All memory is of `dtype`.
        """
        self._functions["run_layers", dtype](layers, count, buffers, step)

    def attention_half(
        self, layer: DecoderLayer, buffers: LayerBuffers, step: AttentionStep, dtype: torch.dtype
    ) -> None:
        """A layer up to the projection of what its attention found: the update, without the other ranks'."""
        self._functions["attention_half", dtype](layer, buffers, step)

    def mlp_half(self, layer: DecoderLayer, buffers: LayerBuffers, dtype: torch.dtype) -> None:
        """The rest of a layer, up to the update, without the other ranks'."""
        self._functions["mlp_half", dtype](layer, buffers)

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        """logits (rows, width) float32, each row dense -> (rows,)."""
        rows, width = logits.shape
        out = logits.new_empty(rows)
        self._log_sum_exp(logits.data_ptr(), logits.stride(0), out.data_ptr(), rows, width)
        return out

    def largest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """logits (rows, width) float32, each row dense -> largest number (NaN if any is) and its first place."""
        rows, width = logits.shape
        values, indices = logits.new_empty(rows), logits.new_empty(rows, dtype=torch.int64)
        self._largest(logits.data_ptr(), logits.stride(0), values.data_ptr(), indices.data_ptr(), rows, width)
        return values, indices

    def all_reduce(self, group: RankGroup, part: Tensor) -> None:
        """Replace each rank's part by the sum of all, taken in float32 in the order of ranks and rounded once.

        Raises RuntimeError when a rank's process has ended, or when one took no part for the group's timeout.
        """
        self._functions["all_reduce", part.dtype](group, part.data_ptr(), part.numel())
        group.check()

    def gather_shards(self, group: RankGroup, shard: Tensor, out: Tensor | None) -> None:
        """Each rank's shard (rows, n), of any dtype -> out (rows, size * n), for ranks that pass one.

        Raises RuntimeError as `all_reduce` does.
        """
        into = None if out is None else out.data_ptr()
        rows, columns = shard.shape
        self._gather_shards(group, shard.data_ptr(), into, rows, columns * shard.element_size())
        group.check()


def supported_targets() -> list[str]:
    """Targets whose instructions this CPU has, the fastest first."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX512":
        return list(TARGETS)
    return ["avx2", "portable"] if capability == "AVX2" else ["portable"]


def built_targets() -> list[str]:
    """Supported targets whose library has been built, the fastest first."""
    return [target for target in supported_targets() if library_path(target).exists()]


def load_kernels(choice: str) -> Kernels | None:
    """choice: auto, off, or a target.

    None for off, and for auto where nothing is built or can be loaded, which the log says once. Raises
    ModelProviderError for a target that this CPU cannot run or that is not built.
    """
    if choice == "off":
        return None
    if choice == "auto":
        built = built_targets()
        return _load_or_do_without(built[0]) if built else _nothing_built()
    if choice not in supported_targets():
        raise ModelProviderError(f"--kernels {choice}: this CPU runs {', '.join(supported_targets())}")
    if choice not in built_targets():
        raise ModelProviderError(f"--kernels {choice}: not built; `python -m model_providers.kernels.build` builds it")
    return _load(choice)


def kernels_for(choice: str, dtype: torch.dtype, device: torch.device) -> Kernels | None:
    """`load_kernels` where they can serve: on the CPU, in float32 or bfloat16; None elsewhere."""
    return load_kernels(choice) if device.type == "cpu" and dtype in DTYPES else None


@functools.cache
def _load(target: str) -> Kernels:
    return Kernels(target)


@functools.cache
def _load_or_do_without(target: str) -> Kernels | None:
    try:
        return _load(target)
    except OSError as error:  # built on another machine, or with another compiler's OpenMP
        logger.warning("the CPU kernels cannot be loaded, so slower torch operators serve instead: %s", error)
        return None


@functools.cache
def _nothing_built() -> None:
    logger.warning(
        "the CPU kernels are not built, so slower torch operators serve instead; install a C++ compiler and run "
        "`python -m model_providers.kernels.build`, or say --kernels off"
    )

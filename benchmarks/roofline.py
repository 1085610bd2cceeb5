"""`python -m benchmarks.roofline RESULT`: how close a decode step of `bench offline` came to what the device can do.

The serial roofline adds up the time to read weights, keys and values at the rate that the device reads, and the time of
the products at the rate that its fastest product reaches, both measured here and now. No step can hide all of one
behind the other, so it is a bound to compare with rather than a limit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.errors import BenchmarkError, SetupError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_READ_BYTES = {"cpu": 2**29, "cuda": 2**33}
_PRODUCT = {"cpu": (256, 2048, 2048), "cuda": (8192, 8192, 8192)}  # rows, in, out
_RUNS = 7


@dataclass(frozen=True)
class DeviceRates:
    """Bytes read and floating-point operations per second."""

    read: float
    products: float


@dataclass(frozen=True)
class DecodeStep:
    """What one step must do. kv_bytes: keys and values of the whole batch."""

    batch_size: int
    weights_bytes: int
    num_weights: int
    kv_bytes: float

    def roofline_seconds(self, rates: DeviceRates) -> float:
        read = (self.weights_bytes + self.kv_bytes) / rates.read
        return read + 2 * self.num_weights * self.batch_size / rates.products


def decode_step_of(result: Mapping[str, Any]) -> DecodeStep:
    """result: of `bench offline`. The context is that of the middle of generation. Raises SetupError."""
    workload, model, batch_size = result["workload"], result["model"], result["step_ms"]["batch_size"]
    if batch_size is None:
        raise SetupError("the result has no step that only decodes; raise --max-new-tokens")
    context = workload["prompt_tokens"] / workload["num_prompts"] + workload["max_new_tokens"] / 2
    kv_heads = model["num_query_groups"] or model["num_attention_heads"]
    itemsize = _DTYPES[result["dtype"]].itemsize
    kv_bytes_per_token = 2 * model["num_layers"] * kv_heads * model["kv_channels"] * itemsize
    weights_bytes = result["memory"]["weights_bytes"]
    return DecodeStep(batch_size, weights_bytes, weights_bytes // itemsize, batch_size * context * kv_bytes_per_token)


def measure_rates(device: str, dtype: torch.dtype) -> DeviceRates:
    """With the threads that torch is set to."""
    floats = torch.ones(_READ_BYTES[device] // 4, device=device)
    read = floats.nbytes / _fastest(floats.sum, device)
    del floats
    rows, columns, outputs = _PRODUCT[device]
    if device == "cpu" and not _has_products_of(dtype):
        dtype = torch.float32  # what is computed instead
    x = torch.randn(rows, columns, device=device, dtype=dtype)
    weight = torch.randn(outputs, columns, device=device, dtype=dtype)
    products = [lambda: linear(x, weight)]
    if device == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        products.append(lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""))
    seconds = min(_fastest(product, device) for product in products)
    return DeviceRates(read, 2 * rows * columns * outputs / seconds)


def _has_products_of(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies this format on this processor."""
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype == torch.float32 or supported[dtype]()


def _fastest(run: Callable[[], Tensor], device: str) -> float:
    """Seconds of the fastest of several runs: what the device can do, not what it does on average."""
    times = []
    for _ in range(_RUNS):
        _synchronize(device)
        started = time.perf_counter()
        run()
        _synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def report(path: Path) -> dict[str, Any]:
    """share: of the roofline's speed that the measured step reached. Raises SetupError."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from error
    if result.get("benchmark") != "offline":
        raise SetupError(f"{path} is no result of `megaserve bench offline --json FILE`")
    if result.get("quantize", "none") != "none":
        raise SetupError(f"{path} is of quantized weights, which this roofline is not for; measure without --quantize")
    step = decode_step_of(result)
    torch.set_num_threads(result["threads"])
    rates = measure_rates(result["device"], _DTYPES[result["dtype"]])
    roofline_ms = step.roofline_seconds(rates) * 1000
    return {
        "batch_size": step.batch_size,
        "step_ms": result["step_ms"]["median"],
        "roofline_ms": roofline_ms,
        "share": roofline_ms / result["step_ms"]["median"],
        "read_gb_per_second": rates.read / 1e9,
        "gflops": rates.products / 1e9,
    }


def main(argv: list[str] | None = None) -> int:
    """Prints the report as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roofline", description=__doc__)
    parser.add_argument("result", type=Path, help="of `megaserve bench offline --json`")
    arguments = parser.parse_args(argv)
    try:
        print(msgspec.json.format(msgspec.json.encode(report(arguments.result)), indent=2).decode())
    except BenchmarkError as error:
        print(f"roofline: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())

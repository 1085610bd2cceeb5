"""`python -m benchmarks.step_check`: the logits of the same steps in every way that a device offers.

In 16 bits, attention of the device (FlashAttention on a GPU, kernels on a CPU) and CUDA graphs may be no further from
fp32 than twice what torch operators are. Every way gets the same tokens, so one near tie does not make the rest differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence as Items
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.checkpoint import resolve_serve_arguments
from benchmarks.errors import BenchmarkError, MeasurementError, SetupError
from benchmarks.options import Options
from model_providers.parallel import join_world_of_one
from server.config import ResolvedDocument
from server.engine.build import BuiltRank, build_rank
from server.engine.scheduler import ScheduledSequence
from server.engine.sequence import Sequence
from server.engine.step_plan import build_plan, order_for_execution
from server.request import EngineRequest, SamplingParams

_PLAIN = ("--kernels", "off", "--linear-backend", "plain")
_PROMPTS = (310, 7, 64, 129, 200, 31, 258, 90, 17)
_DECODED = (9, 8, 5, 3, 2, 1)  # batch sizes, one step each
_SLACK = 0.005  # where torch operators happen to be as exact as fp32


def check_steps(checkpoint: Path, device: str, dtype: str) -> str:
    """What was compared. Raises BenchmarkError."""
    ways: dict[str, tuple[str, ...]] = {
        "fp32": ("--dtype", "fp32", *_PLAIN),
        "torch operators": ("--dtype", dtype, *_PLAIN),
        "attention of the device": ("--dtype", dtype, "--no-cuda-graphs"),
    }
    if device == "cuda":
        ways["CUDA graphs"] = ("--dtype", dtype)
    join_world_of_one()
    logprobs = {}
    for name, flags in ways.items():
        options = Options(extra=("--device", device, "--kv-cache-gb", "1", *flags))
        logprobs[name] = _logprobs(resolve_serve_arguments(options.serve_arguments(checkpoint)))
    truth = logprobs.pop("fp32")
    errors = compare(truth, logprobs)
    found = "; ".join(f"{name} by up to {error:.3g}" for name, error in errors.items())
    return f"{device}, {dtype}: {len(truth)} steps; log-probabilities differ from fp32's with {found}"


def compare(truth: Items[Tensor], logprobs: dict[str, list[Tensor]]) -> dict[str, float]:
    """By way, the largest difference from the truth. The first way is the measure. Raises MeasurementError."""
    errors = {name: _difference(truth, steps) for name, steps in logprobs.items()}
    most = 2 * next(iter(errors.values())) + _SLACK
    for name, error in errors.items():
        if not error <= most:  # also where it is NaN
            raise MeasurementError(f"{name}: log-probabilities differ from fp32's by {error:.3g}, more than {most:.3g}")
    return errors


def _difference(expected: Items[Tensor], seen: Items[Tensor]) -> float:
    # torch's max, unlike Python's, keeps a NaN wherever it stands.
    return float(torch.stack([(a - b).abs().max() for a, b in zip(expected, seen, strict=True)]).max())


def _logprobs(document: ResolvedDocument) -> list[Tensor]:
    """Of each step, (sequences, vocabulary), in float32 on the CPU.

    The steps: the first halves of all prompts; second halves beside single tokens of others; then nothing but decoding.
    """
    torch.set_num_threads(document.values["threads"])
    built = build_rank(document)
    built.runner.record_graphs()
    sequences = _sequences(built)
    halves = [length // 2 for length in _PROMPTS]
    steps = [
        _step(built, sequences, halves),
        _step(built, sequences, [1 if index % 2 else half for index, half in enumerate(halves)]),
    ]
    return steps + [_step(built, sequences[:count], [1] * count) for count in _DECODED]


def _sequences(built: BuiltRank) -> list[Sequence]:
    """With tokens for all steps, each in blocks of its own."""
    generator = torch.Generator().manual_seed(0)
    block_size, sequences, first = built.limits.block_size, [], 0
    for index, length in enumerate(_PROMPTS):
        count = length + len(_DECODED)
        tokens = torch.randint(0, built.limits.vocab_size, (count,), generator=generator).tolist()
        request = EngineRequest(request_id=str(index), prompt_token_ids=tokens, params=SamplingParams())
        sequence = Sequence(request, block_size)
        sequence.blocks = list(range(first, first - (-count // block_size)))
        first += len(sequence.blocks)
        sequences.append(sequence)
    if first > built.limits.num_blocks:
        raise SetupError(f"a KV cache of 1 GiB has {built.limits.num_blocks} blocks of this model, fewer than {first}")
    return sequences


def _step(built: BuiltRank, sequences: Items[Sequence], num_new: Items[int]) -> Tensor:
    items = [ScheduledSequence(s, new, samples=True) for s, new in zip(sequences, num_new, strict=True)]
    logits = torch.cat(list(built.runner.execute(build_plan(order_for_execution(items)))))
    for item in items:
        item.sequence.num_computed += item.num_new
    return logits.log_softmax(-1).cpu()


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0 alike, 1 not alike, 2 not compared."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_check", description=__doc__)
    parser.add_argument("--load", type=Path, required=True, metavar="DIR", help="Megatron checkpoint")
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--dtype", choices=["bf16", "fp16"], default="bf16", help="default: %(default)s")
    arguments = parser.parse_args(argv)
    try:
        print(check_steps(arguments.load, arguments.device, arguments.dtype))
    except BenchmarkError as error:
        print(f"step_check: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())

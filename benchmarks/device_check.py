"""`python -m benchmarks.device_check`: the engine on a device against the reference, plain torch operators on the CPU.

Both generate greedily in fp32, and their tokens must be equal; log-likelihoods may differ by rounding alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.checkpoint import resolve_serve_arguments, workload_for
from benchmarks.errors import BenchmarkError, MeasurementError
from benchmarks.loaded_engine import load_engine
from benchmarks.messages import Generate, Score
from benchmarks.options import Options

REFERENCE = ("--device", "cpu", "--kernels", "off", "--linear-backend", "plain")
_SCORED_TOKENS = 8
_LARGEST_DIFFERENCE = 0.01


def check_device(checkpoint: Path, device: str, num_prompts: int, max_new_tokens: int) -> str:
    """What was compared. Raises BenchmarkError."""
    options = Options(load=checkpoint, dtype="fp32")
    reference, tested = (
        resolve_serve_arguments(dataclasses.replace(options, extra=extra).serve_arguments(checkpoint))
        for extra in (REFERENCE, ("--device", device))
    )
    prompts = workload_for(reference, num_prompts, max_new_tokens).prompts
    with ExitStack() as stack:
        workers = [load_engine(stack, document, prompts) for document in (reference, tested)]
        generate = Generate(max_new_tokens=max_new_tokens)
        check_tokens(*(worker.generate(generate).token_ids for worker in workers))
        score = Score(num_scored_tokens=[_SCORED_TOKENS] * len(prompts))
        difference = check_scores(*(worker.score(score).logprobs for worker in workers))
    return (
        f"{device}: {len(prompts)} prompts of up to {max(map(len, prompts))} tokens, {max_new_tokens} new ones each: "
        f"tokens equal the reference's; log-likelihoods differ by up to {difference:.2g}"
    )


def check_tokens(expected: list[list[int]], seen: list[list[int]]) -> None:
    """Raises MeasurementError."""
    different = [index for index, pair in enumerate(zip(expected, seen, strict=True)) if pair[0] != pair[1]]
    if different:
        raise MeasurementError(f"tokens differ from the reference's for prompts {different}")


def check_scores(expected: list[float], seen: list[float]) -> float:
    """The largest difference. Raises MeasurementError when it is more than rounding."""
    difference = max(abs(a - b) for a, b in zip(expected, seen, strict=True))
    if difference > _LARGEST_DIFFERENCE:
        raise MeasurementError(f"log-likelihoods differ from the reference's by up to {difference:.3f}")
    return difference


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0 equal, 1 not equal, 2 not compared."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_check", description=__doc__)
    parser.add_argument("--load", type=Path, required=True, metavar="DIR", help="Megatron checkpoint")
    parser.add_argument("--device", choices=["cuda", "cpu"], required=True)
    parser.add_argument("--num-prompts", type=int, default=8, metavar="N", help="of W32; default: %(default)s")
    parser.add_argument("--max-new-tokens", type=int, default=32, metavar="N", help="default: %(default)s")
    arguments = parser.parse_args(argv)
    try:
        print(check_device(arguments.load, arguments.device, arguments.num_prompts, arguments.max_new_tokens))
    except BenchmarkError as error:
        print(f"device_check: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The result for people, and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.errors import MeasurementError, SetupError
from benchmarks.report_tables import TABLES
from evaluation.run_directory.atomic import write_atomic


def check_json_path(path: Path) -> None:
    """Before minutes of measuring: raises SetupError when the result could not be written there."""
    if path.is_dir():
        raise SetupError(f"--json {path}: is a directory; name a file")
    if not path.parent.is_dir():
        raise SetupError(f"--json {path}: the directory {path.parent} does not exist")


def write_json(path: Path, result: dict[str, Any]) -> None:
    """All or nothing. Raises MeasurementError."""
    try:
        write_atomic(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    except OSError as error:
        raise MeasurementError(f"--json {path}: cannot be written: {error.strerror}") from error


def print_table(result: dict[str, Any], console: Console) -> None:
    """With the machine, and a warning when other processes disturbed the measurement."""
    machine = result["machine"]
    if result["benchmark"] == "images":
        _print_images(result, console)
        return
    make_table = TABLES.get(result["benchmark"], _two_columns)
    console.print(make_table(result))
    console.print(f"{machine['cpu_model']}, {result['threads']} threads of {machine['cores']} cores")
    if result["num_disturbed"]:
        console.print(
            f"Other processes ran meanwhile: {result['num_disturbed']} repetitions are disturbed "
            "(see foreign_cpu_share in the JSON).",
            style="yellow",
        )


def _two_columns(result: dict[str, Any]) -> Table:
    title = f"bench {result['benchmark']}, {result['workload']['name']}, {result['dtype']}"
    table = Table(title=title, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    of_benchmark = _vlm_rows(result) if result["benchmark"] == "vlm" else _text_rows(result)
    for row in of_benchmark:
        table.add_row(*row)
    return table


def _print_images(result: dict[str, Any], console: Console) -> None:
    samples = result["pss_bytes"]
    table = Table(title=f"bench images, {result['num_images']} distinct pictures, MB", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("ready", f"{samples[0] / 1e6:.1f}")
    table.add_row("growth over the first half", f"{result['growth_first_half_bytes'] / 1e6:.1f}")
    table.add_row("growth over the second half", f"{result['growth_second_half_bytes'] / 1e6:.1f}")
    console.print(table)


def _text_rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _common_rows(result)
    yield from _http_rows(result)
    yield from _comparison_rows(result)


def _vlm_rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    theirs, workload = result["hugging_face"], result["workload"]
    yield "questions/s", f"{result['questions_per_second']:.1f}"
    for name, rate in theirs["questions_per_second"].items():
        yield f"Hugging Face, batches of {name}, questions/s", f"{rate:.1f}"
    yield "times the better of Hugging Face", f"{theirs['ratio']:.2f}"
    yield "times the better with features reused", f"{theirs['ratio_features_reused']:.2f}"
    yield "equal answers", f"{theirs['num_equal_answers']} of {workload['num_prompts']}"
    yield "pictures", str(workload["num_pictures"])
    yield "prompt tokens from the prefix cache", f"{result['cached_tokens'] / workload['prompt_tokens']:.0%}"
    yield (
        "peak resident memory, GB (Hugging Face's)",
        (f"{result['peak_rss_bytes'] / 1e9:.2f} ({theirs['peak_rss_bytes'] / 1e9:.2f})"),
    )


def _common_rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    step = result["step_ms"]
    yield "output tokens/s", f"{result['output_tokens_per_second']:.1f}"
    yield "prompt and output tokens/s", f"{result['total_tokens_per_second']:.1f}"
    if step["num_steps"]:
        yield f"decode step of {step['batch_size']}, ms", f"{step['median']:.1f} (p95 {step['p95']:.1f})"
    yield "peak resident memory, GB", f"{result['peak_rss_bytes'] / 1e9:.2f}"
    if "memory" in result:
        yield "growth of memory over weights", f"{result['memory']['growth_over_weights']:.2f}"
    yield "loading, s", f"{result['load_seconds']:.1f}"


def _http_rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if result["benchmark"] != "http":
        return
    latency, ttft = result["latency_seconds"], result["ttft_seconds"]
    yield "requests at a time", str(result["concurrency"])
    yield "output tokens/s, streamed", f"{result['streamed_output_tokens_per_second']:.1f}"
    yield "latency, s", f"{latency['p50']:.2f} (p95 {latency['p95']:.2f})"
    yield "time to first token, s", f"{ttft['p50']:.2f} (p95 {ttft['p95']:.2f})"


def _comparison_rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    theirs = result.get("hugging_face")
    if theirs is None:
        return
    for size, rate in theirs["output_tokens_per_second"].items():
        yield f"Hugging Face, batches of {size}, tokens/s", f"{rate:.1f}"
    disturbed = " (disturbed)" if result["num_disturbed"] else ""
    yield f"times the better of Hugging Face{disturbed}", f"{theirs['ratio']:.2f}"
    yield "sequences with equal tokens", f"{theirs['num_equal_sequences']} of {result['workload']['num_prompts']}"

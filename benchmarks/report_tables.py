"""The tables of `bench compare`, `latency`, `prefix` and `sweep`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table

from benchmarks.peers.measurements import METRICS, OURS

Result = dict[str, Any]


def compare_table(result: Result) -> Table:
    """A line for each metric, a column for each peer: its median, and how many times better ours is."""
    metrics = result["metrics"]
    peers = list(dict.fromkeys(name for values in metrics.values() for name in values if name != OURS))
    table = Table(title=f"bench compare, {result['workload']['name']}, {result['dtype']}")
    for number, name in enumerate(("", OURS, *peers)):
        table.add_column(name, justify="right" if number else "left")
    for metric in METRICS:
        if metric.name in metrics:
            values = metrics[metric.name]
            cells = [_compared(values[name]) if name in values else "" for name in (OURS, *peers)]
            table.add_row(metric.title, *cells)
    equal = result["num_equal_sequences"]
    if equal and result["dtype"] == "fp32":
        total = result["workload"]["num_prompts"]
        table.add_row("sequences with our tokens", "", *(f"{equal[n]} of {total}" if n in equal else "" for n in peers))
    missing = result["left_out"] | result["left_out_over_http"]
    table.caption = "Second line: how many times better megaserve is, median (least to most). " + " ".join(
        f"Left out: {name}: {reason.splitlines()[-1].strip()}" for name, reason in missing.items()
    )
    return table


def latency_table(result: Result) -> Table:
    decode, gaps = result["decode_ms"], result["inter_token_ms"]
    table = Table(title=f"bench latency, {result['dtype']}, ms")
    for number, name in enumerate(("", "in process", "streamed over HTTP")):
        table.add_column(name, justify="right" if number else "left")
    table.add_row("between tokens, one request", f"{decode['in_process']:.1f}", f"{decode['streamed']:.1f}")
    for length, times in result["ttft_ms"].items():
        table.add_row(f"to the first token of {length}", f"{times['in_process']:.1f}", f"{times['streamed']:.1f}")
    for title, name in (("alone", "alone"), ("beside prefills", "beside_prefill")):
        values = gaps[name]
        text = f"{values['p50']:.1f} (p95 {values['p95']:.1f}, mean {values['mean']:.1f})"
        table.add_row(f"{gaps['num_running']} requests, {title}", "", text)
    return table


def prefix_table(result: Result) -> Table:
    ratio, workload = result["times_better"], result["workload"]
    table = Table(title=f"bench prefix, {workload['num_questions']} questions, {result['dtype']}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("questions/s", f"{result['questions_per_second']:.2f}")
    size = result["lm_eval_batch_size"]
    table.add_row(f"lm-eval, batches of {size}, questions/s", f"{result['lm_eval_questions_per_second']:.2f}")
    table.add_row("times faster", f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})")
    table.add_row("equal answers", f"{result['num_equal_answers']} of {workload['num_questions']}")
    table.add_row("largest difference of a log-likelihood", f"{result['largest_difference']:.2g}")
    table.add_row("prompt tokens from the prefix cache", f"{result['cached_share']:.0%}")
    return table


def sweep_table(result: Result) -> Table:
    table = Table(title=f"bench sweep, {result['dtype']}")
    for name in ("batch", "context", "decode, tokens/s", "step p95, ms", "PSS, GB"):
        table.add_column(name, justify="right")
    points = (*result["by_batch"], *result["by_context"])
    for point in {(point["batch_size"], point["context"]): point for point in points}.values():
        decoded, p95 = point["decode_tokens_per_second"], point["step_ms"]["p95"]
        table.add_row(
            str(point["batch_size"]),
            str(point["context"]),
            "" if decoded is None else f"{decoded:.1f}",
            "" if p95 is None else f"{p95:.1f}",
            f"{point['pss_bytes'] / 1e9:.2f}",
        )
    table.caption = "Scheduler, ms a step by waiting requests: " + ", ".join(
        f"{point['num_waiting']}: {point['step_ms']['median']:.2f}" for point in result["scheduler"]
    )
    return table


TABLES: dict[str, Callable[[Result], Table]] = {
    "compare": compare_table,
    "latency": latency_table,
    "prefix": prefix_table,
    "sweep": sweep_table,
}


def _compared(values: dict[str, Any]) -> str:
    number = values["median"]
    text = f"{number / 1e9:.2f} GB" if number > 1e6 else f"{number:.1f}"
    ratio = values.get("times_better")
    if ratio is None:
        return text
    spread = f" ({ratio['min']:.2f} to {ratio['max']:.2f})" if ratio["min"] != ratio["max"] else ""
    return f"{text}\n{ratio['median']:.2f}{spread}"

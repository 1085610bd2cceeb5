"""What several contenders took for the same work, round by round, and how they compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.aggregates import median

OURS = "megaserve"


class Metric(NamedTuple):
    """One line of the comparison."""

    name: str
    title: str
    higher_is_better: bool = False


OFFLINE = Metric("offline_output_tokens_per_second", "offline, output tokens/s", higher_is_better=True)
DECODE = Metric("decode_ms_per_token", "decode of one sequence, ms/token")
TTFT = Metric("ttft_512_ms", "time to first token of 512, ms")
PROCESS_START = Metric("process_start_seconds", "start to loaded, s")
PROCESS_RSS = Metric("process_peak_rss_bytes", "peak RSS of the process")
PROCESS_PSS = Metric("process_pss_bytes", "PSS of the process")
HTTP = Metric("http_output_tokens_per_second", "HTTP, output tokens/s", higher_is_better=True)
HTTP_P50 = Metric("http_latency_p50_seconds", "HTTP latency p50, s")
HTTP_P95 = Metric("http_latency_p95_seconds", "HTTP latency p95, s")
SERVER_START = Metric("server_start_seconds", "server's start to ready, s")
SERVER_RSS = Metric("server_peak_rss_bytes", "peak RSS of the server")
SERVER_PSS = Metric("server_pss_bytes", "PSS of the server")

IN_PROCESS_METRICS = (OFFLINE, DECODE, TTFT, PROCESS_START, PROCESS_RSS, PROCESS_PSS)
HTTP_METRICS = (HTTP, HTTP_P50, HTTP_P95, SERVER_START, SERVER_RSS, SERVER_PSS)
METRICS = (*IN_PROCESS_METRICS, *HTTP_METRICS)


@dataclass
class Measurements:
    """values: by metric and contender, one for each round. What is measured once has one."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    foreign_cpu_shares: dict[str, list[float]] = field(default_factory=dict)

    def add(self, metric: Metric, contender: str, value: float) -> None:
        self.values.setdefault(metric.name, {}).setdefault(contender, []).append(value)

    def forget(self, contender: str, metrics: Sequence[Metric]) -> None:
        """Drop what it has of these metrics."""
        for metric in metrics:
            self.values.get(metric.name, {}).pop(contender, None)

    def add_foreign_share(self, contender: str, share: float) -> None:
        self.foreign_cpu_shares.setdefault(contender, []).append(share)

    def describe(self) -> dict[str, Any]:
        """By metric and contender."""
        return {
            metric.name: {
                name: _describe(metric, values, self.values[metric.name].get(OURS) if name != OURS else None)
                for name, values in self.values[metric.name].items()
            }
            for metric in METRICS
            if metric.name in self.values
        }


def _describe(metric: Metric, values: Sequence[float], ours: Sequence[float] | None) -> dict[str, Any]:
    description: dict[str, Any] = {"median": median(values), "values": list(values)}
    if ours is not None:
        description["times_better"] = times_better(metric, ours, values)
    return description


def times_better(metric: Metric, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times better ours are than theirs, above 1 when they are: median, least and most over the rounds.

    Each of our values is held against theirs of the same round: what slows the machine for a while meets both.
    """
    pairs = zip(ours, theirs, strict=True)
    ratios = [mine / yours if metric.higher_is_better else yours / mine for mine, yours in pairs]
    return {"median": median(ratios), "min": min(ratios), "max": max(ratios)}

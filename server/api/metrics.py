"""Prometheus metrics, under vLLM's names with our prefix, so that dashboards need one change.

Counts of requests and their times are kept here; the engine's counters and gauges are read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.frontend.sample import Sample
from server.ipc import EngineStats, StepRecord

PREFIX = "megaserve:"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
_SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10)
_POWERS_OF_TWO = tuple(2**exponent for exponent in range(18))


class ServerMetrics:
    """One registry for one model; an `EngineObserver`."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model_name = model_name
        ProcessCollector(registry=self.registry)
        self._time_to_first_token = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _SECONDS)
        self._inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a sequence.", _SHORT_SECONDS
        )
        self._latency = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _SECONDS)
        self._queue_time = self._histogram("request_queue_time_seconds", "Arrival to first step.", _SECONDS)
        self._inference_time = self._histogram("request_inference_time_seconds", "First step to end.", _SECONDS)
        self._prefill_time = self._histogram("request_prefill_time_seconds", "First step to first token.", _SECONDS)
        self._decode_time = self._histogram("request_decode_time_seconds", "First token to last.", _SECONDS)
        self._prompt_tokens = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _POWERS_OF_TWO)
        self._generated_tokens = self._histogram("request_generation_tokens", "Tokens of an answer.", _POWERS_OF_TWO)
        self._step_time = self._histogram(
            "step_seconds", "One step, by what its sequences did.", _SHORT_SECONDS, ("phase",)
        )
        self._batch_size = self._histogram("batch_size", "Sequences in a step.", _POWERS_OF_TWO)
        self._step_tokens = self._histogram("iteration_tokens", "Tokens computed in a step.", _POWERS_OF_TWO)
        self._finished = Counter(
            f"{PREFIX}request_success",
            "Sequences that ended, by why: stop, length, abort, error.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        for reason in ("stop", "length", "abort", "error"):
            self._finished.labels(model_name, reason)  # shown from the start, as zero
        self._replies = Counter(
            f"{PREFIX}http_requests",
            "Replies by route and status; 499: the client had gone.",
            ("method", "path", "status"),
            registry=self.registry,
        )

    def watch(self, stats: Callable[[], EngineStats], num_restarts: Callable[[], int]) -> None:
        """Report the engine's own figures too."""
        self.registry.register(EngineCollector(self._model_name, stats, num_restarts))

    def render(self) -> bytes:
        """All metrics, in Prometheus's text format."""
        return generate_latest(self.registry)

    def count_reply(self, method: str, route: str, status: int) -> None:
        """Count one HTTP reply. route: the declared path, never the client's."""
        self._replies.labels(method if method in _METHODS else "other", route, str(status)).inc()

    def take_steps(self, steps: Sequence[StepRecord]) -> None:
        for step in steps:
            self._step_time.labels(self._model_name, step.phase).observe(step.seconds)
            self._batch_size.labels(self._model_name).observe(step.batch_size)
            self._step_tokens.labels(self._model_name).observe(step.num_tokens)

    def take_token_gap(self, seconds: float, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self._inter_token_latency.labels(self._model_name).observe(seconds / num_tokens)

    def take_ended(self, samples: Iterable[Sample]) -> None:
        """Sequences whose request is over, each with its finish, its error, or neither when nobody waited for it."""
        for sample in samples:
            if sample.error is not None:
                self._finished.labels(self._model_name, "error").inc()
            elif sample.finish is None or sample.finish.type == "abort":
                self._finished.labels(self._model_name, "abort").inc()
            else:
                self._finished.labels(self._model_name, sample.finish.type).inc()
                self._take_times(sample)

    def _take_times(self, sample: Sample) -> None:
        name = self._model_name
        self._prompt_tokens.labels(name).observe(len(sample.request.prompt_token_ids))
        self._generated_tokens.labels(name).observe(len(sample.token_ids))
        self._latency.labels(name).observe(sample.total_seconds)
        first = sample.time_to_first_token
        if first is None or sample.timings is None:
            return
        queued = sample.timings.queue_seconds
        self._time_to_first_token.labels(name).observe(first)
        self._queue_time.labels(name).observe(queued)
        self._prefill_time.labels(name).observe(max(0.0, first - queued))
        self._decode_time.labels(name).observe(max(0.0, sample.total_seconds - first))
        self._inference_time.labels(name).observe(max(0.0, sample.total_seconds - queued))

    def _histogram(self, name: str, help: str, buckets: Sequence[float], labels: tuple[str, ...] = ()) -> Histogram:
        names = ("model_name", *labels)
        return Histogram(PREFIX + name, help, names, buckets=buckets, registry=self.registry)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "OPTIONS"})


class EngineCollector(Collector):
    """The engine's counters since its group started (they begin again at zero after a restart), and its gauges."""

    def __init__(self, model_name: str, stats: Callable[[], EngineStats], num_restarts: Callable[[], int]) -> None:
        self._model_name = model_name
        self._stats = stats
        self._num_restarts = num_restarts

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        used = stats.num_blocks - stats.num_free_blocks
        yield self._gauge("num_requests_running", "Sequences in the running batch.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Sequences that wait to be run.", stats.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", used / max(stats.num_blocks, 1))
        yield self._gauge("kv_blocks", "KV blocks in all.", stats.num_blocks)
        yield self._gauge("kv_blocks_used", "KV blocks held by sequences.", used)
        yield self._gauge("kv_blocks_free", "KV blocks that can be allocated.", stats.num_free_blocks)
        yield self._gauge("engine_paused", "1 while /pause holds.", stats.is_paused)
        yield self._counter("prompt_tokens", "Tokens of prompts that arrived.", stats.total_prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", stats.total_generated_tokens)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", stats.total_prompt_tokens)
        yield self._counter("prefix_cache_hits", "Of these, tokens that were cached.", stats.total_cached_tokens)
        yield self._counter("num_preemptions", "Sequences put back to start over later.", stats.total_preemptions)
        yield self._counter("spec_decode_num_drafts", "Guesses of one or more tokens together.", stats.total_drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Tokens guessed.", stats.total_draft_tokens)
        yield self._counter(
            "spec_decode_num_accepted_tokens", "Of these, tokens that came true.", stats.total_accepted_tokens
        )
        yield self._counter("engine_steps", "Steps that computed tokens.", stats.num_steps)
        yield self._counter("images_encoded", "Images that went through the encoder.", stats.total_images_encoded)
        yield self._counter("image_cache_hits", "Images whose embeddings were cached.", stats.total_image_cache_hits)
        yield self._counter("image_encoder_seconds", "Time in the image encoder.", stats.total_encoder_seconds)
        yield self._counter("engine_restarts", "Times the ranks were started again.", self._num_restarts())

    def _gauge(self, name: str, help: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, help, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, help, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

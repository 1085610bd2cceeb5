"""`megaserve bench http`: the whole server, as clients see it that keep a number of requests under way."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from benchmarks.aggregates import StepTime, describe_steps, p50_and_p95
from benchmarks.checkpoint import checkpoint_or_smollm2, workload_for
from benchmarks.errors import MeasurementError
from benchmarks.http_load import Answer, Round, run_round
from benchmarks.machine import describe_machine, versions
from benchmarks.options import Options
from benchmarks.repetition import Repetition, measured, num_disturbed, report_progress, throughput
from benchmarks.served import ServedModel
from benchmarks.workload import Workload
from server.config import ResolvedDocument

_WARM_UP_TOKENS = 4


@dataclass
class Series:
    """The rounds of one kind, plain or streamed."""

    repetitions: list[Repetition] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """What the clients do in every round."""

    runner: asyncio.Runner
    session: aiohttp.ClientSession
    url: str
    concurrency: int

    def run(self, workload: Workload, stream: bool) -> Round:
        return self.runner.run(run_round(self.session, self.url, workload, concurrency=self.concurrency, stream=stream))

    def measure(self, workload: Workload, stream: bool, series: Series, quiet_wait: float) -> None:
        outcome, foreign = measured(lambda: self.run(workload, stream), quiet_wait)
        rate = workload.num_output_tokens / outcome.seconds
        series.answers += outcome.answers
        series.repetitions.append(Repetition(outcome.seconds, rate, foreign))
        kind = "streamed" if stream else "plain"
        report_progress(f"{kind}: {rate:.1f} output tokens/s, other processes used {foreign:.0%} of the cores")


def run_http(options: Options) -> dict[str, Any]:
    """The result as JSON values. Raises BenchmarkError."""
    arguments = options.serve_arguments(checkpoint_or_smollm2(options.load))
    with ServedModel(arguments) as served, asyncio.Runner() as runner:
        session = runner.run(_open_session())
        try:
            report_progress("megaserve: loading")
            load_seconds = runner.run(served.wait_until_ready(session))
            load = Load(runner, session, served.url, options.concurrency)
            return {**_measure(options, served, load), "load_seconds": load_seconds}
        except aiohttp.ClientError as error:  # between rounds; within one it is reported there
            raise MeasurementError(f"the server does not answer: {error}") from error
        finally:
            runner.run(session.close())


def _measure(options: Options, served: ServedModel, load: Load) -> dict[str, Any]:
    document = _document(load.runner.run(served.info(load.session)))
    workload = workload_for(document, options.num_prompts, options.max_new_tokens)
    load.run(dataclasses.replace(workload, max_new_tokens=_WARM_UP_TOKENS), stream=False)
    plain, streamed = Series(), Series()
    for _ in range(options.repetitions):
        load.measure(workload, False, plain, options.quiet_wait)
        load.measure(workload, True, streamed, options.quiet_wait)
    info = load.runner.run(served.info(load.session))
    if info["stats"]["total_cached_tokens"]:
        raise MeasurementError("prompt tokens came from the prefix cache, which has to be off")
    peak_rss_bytes = served.peak_rss_bytes()
    return {
        **_figures(workload, plain, streamed, min(options.concurrency, len(workload.prompts))),
        "peak_rss_bytes": peak_rss_bytes,
        "shutdown_seconds": served.stop(),
        "concurrency": options.concurrency,
        **{name: document.values[name] for name in ("dtype", "threads", "device", "prefix_caching")},
        "tensor_model_parallel_size": document.values["tensor_model_parallel_size"],
        "checkpoint": document.checkpoint.path,
        "memory_per_rank": {name: info["engine"][name] for name in _MEMORY},
        "workload": workload.describe(),
        "versions": versions(),
        "machine": describe_machine(),
    }


_MEMORY = ("rss_after_imports_bytes", "rss_ready_bytes", "weights_bytes_per_rank", "kv_cache_bytes_per_rank")


def _figures(workload: Workload, plain: Series, streamed: Series, batch_size: int) -> dict[str, Any]:
    """step_ms: of each streamed answer the mean time between its tokens, which is a step and its way to the client.

    Latency is of plain answers. Time to first token is of streamed ones: it includes the wait for a place in a step.
    """
    rate = throughput(plain.repetitions)
    steps = [StepTime(s, batch_size) for answer in streamed.answers if (s := answer.seconds_per_token) is not None]
    first_events = [answer.first.seconds for answer in streamed.answers if answer.first is not None]
    return {
        "benchmark": "http",
        "output_tokens_per_second": rate,
        "total_tokens_per_second": rate * (1 + workload.num_prompt_tokens / workload.num_output_tokens),
        "streamed_output_tokens_per_second": throughput(streamed.repetitions),
        "step_ms": describe_steps(steps),
        "latency_seconds": p50_and_p95([answer.latency for answer in plain.answers]),
        "ttft_seconds": p50_and_p95(first_events),
        "repetitions": [repetition.describe() for repetition in plain.repetitions],
        "streamed_repetitions": [repetition.describe() for repetition in streamed.repetitions],
        "num_disturbed": num_disturbed([*plain.repetitions, *streamed.repetitions]),
    }


def _document(info: dict[str, Any]) -> ResolvedDocument:
    return msgspec.convert(info["document"], ResolvedDocument)


async def _open_session() -> aiohttp.ClientSession:
    """Without a limit of its own on connections, and with room for the cumulative events of long answers."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**22)

"""`megaserve bench latency`: how long one client waits, for a first token and between tokens, and beside prefills."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.aggregates import median, percentile
from benchmarks.checkpoint import checkpoint_or_smollm2, resolve_serve_arguments
from benchmarks.errors import MeasurementError, SetupError
from benchmarks.http_load import ask
from benchmarks.inter_token import gaps_while
from benchmarks.interference import DISTURBED_SHARE
from benchmarks.loaded_engine import load_engine, settings_of
from benchmarks.machine import describe_machine, versions
from benchmarks.messages import Generate
from benchmarks.options import Options
from benchmarks.prompts import encoder_of
from benchmarks.repetition import measured, report_progress
from benchmarks.served import ServedModel
from benchmarks.worker_process import WorkerProcess
from benchmarks.workload import cut_prompts
from server.config import ResolvedDocument

PROMPT_LENGTHS = (16, 64, 128, 256, 512, 1024, 2048, 4096)
DECODE_PROMPT = 64
DECODED_TOKENS = 64
NUM_RUNNING = 8
RUNNING_TOKENS = 48
PREFILL_PROMPT = 512


@dataclass
class Samples:
    """One value per round, all in milliseconds. ttft_*: by prompt length."""

    decode_in_process: list[float] = field(default_factory=list)
    decode_streamed: list[float] = field(default_factory=list)
    ttft_in_process: dict[int, list[float]] = field(default_factory=dict)
    ttft_streamed: dict[int, list[float]] = field(default_factory=dict)
    gaps_alone: list[float] = field(default_factory=list)
    gaps_beside_prefill: list[float] = field(default_factory=list)
    num_prefills: int = 0
    foreign_cpu_shares: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """Engine and server, both loaded, and the prompts."""

    engine: WorkerProcess
    url: str
    runner: asyncio.Runner
    session: aiohttp.ClientSession
    prompts: dict[int, list[int]]

    def round(self, samples: Samples) -> None:
        """One client, then running requests beside which others' prompts are computed."""
        self.one_client(samples)
        self._running_beside_prefills(samples)

    def one_client(self, samples: Samples) -> None:
        """In process and over HTTP in turn."""
        samples.decode_in_process.append(self._decode_in_process())
        samples.decode_streamed.append(self._decode_streamed())
        for length, prompt in self.prompts.items():
            seconds = self.engine.generate(Generate(max_new_tokens=1, prompts=[prompt])).seconds
            samples.ttft_in_process.setdefault(length, []).append(seconds * 1000)
            samples.ttft_streamed.setdefault(length, []).append(self._ttft_streamed(prompt))

    def _running_beside_prefills(self, samples: Samples) -> None:
        for prefilling, gaps in ((False, samples.gaps_alone), (True, samples.gaps_beside_prefill)):
            running = [self.prompts[DECODE_PROMPT]] * NUM_RUNNING
            prefill = self.prompts[max(n for n in self.prompts if n <= PREFILL_PROMPT)] if prefilling else None
            seen = self.runner.run(gaps_while(self.session, self.url, running, RUNNING_TOKENS, prefill))
            gaps += [gap * 1000 for gap in seen.seconds]
            samples.num_prefills += seen.num_prefills

    def _decode_in_process(self) -> float:
        first, both = (
            self.engine.generate(Generate(max_new_tokens=count, prompts=[self.prompts[DECODE_PROMPT]])).seconds
            for count in (1, 1 + DECODED_TOKENS)
        )
        return (both - first) / DECODED_TOKENS * 1000

    def _decode_streamed(self) -> float:
        """To the end of the stream, less the same for a single token."""
        prompt = self.prompts[DECODE_PROMPT]
        first, both = (
            self.runner.run(ask(self.session, self.url, prompt, count, stream=True)).latency
            for count in (1, 1 + DECODED_TOKENS)
        )
        return (both - first) / DECODED_TOKENS * 1000

    def _ttft_streamed(self, prompt: list[int]) -> float:
        answer = self.runner.run(ask(self.session, self.url, prompt, 1, stream=True))
        assert answer.first is not None, "it was streamed"
        return answer.first.seconds * 1000


def run_latency(options: Options) -> dict[str, Any]:
    """The result as JSON values. Raises BenchmarkError."""
    arguments = options.serve_arguments(checkpoint_or_smollm2(options.load))
    document = resolve_serve_arguments(arguments)
    prompts = _prompts(document)
    samples = Samples()
    with ExitStack() as stack:
        report_progress("megaserve: loading it twice, in process and behind HTTP")
        engine = load_engine(stack, document, [prompts[DECODE_PROMPT]])
        served = stack.enter_context(ServedModel(arguments))
        runner = stack.enter_context(asyncio.Runner())
        session = runner.run(_open_session())
        stack.callback(lambda: runner.run(session.close()))
        runner.run(served.wait_until_ready(session))
        bench = Bench(engine, served.url, runner, session, prompts)
        bench.one_client(Samples())  # to warm up
        for number in range(1, options.repetitions + 1):
            _, foreign = measured(lambda: bench.round(samples), options.quiet_wait)
            samples.foreign_cpu_shares.append(foreign)
            report_progress(f"round {number} of {options.repetitions}, others used {foreign:.0%} of the cores")
        served.stop()
    return {**_figures(samples), **_circumstances(document, samples)}


def _prompts(document: ResolvedDocument) -> dict[int, list[int]]:
    """By length, as many as the model takes. Raises SetupError."""
    most = document.values["max_model_len"] - 1
    if most < DECODE_PROMPT + RUNNING_TOKENS:
        raise SetupError(
            f"bench latency needs sequences of {DECODE_PROMPT + RUNNING_TOKENS} tokens, too long for this model"
        )
    lengths = [length for length in PROMPT_LENGTHS if length <= most]
    return dict(zip(lengths, cut_prompts(encoder_of(document), lengths), strict=True))


def _figures(samples: Samples) -> dict[str, Any]:
    in_process, streamed = median(samples.decode_in_process), median(samples.decode_streamed)
    alone, beside = _describe_gaps(samples.gaps_alone), _describe_gaps(samples.gaps_beside_prefill)
    return {
        "benchmark": "latency",
        "decode_ms": {"in_process": in_process, "streamed": streamed, "ratio": streamed / in_process},
        "ttft_ms": {
            str(length): {"in_process": median(times), "streamed": median(samples.ttft_streamed[length])}
            for length, times in samples.ttft_in_process.items()
        },
        "inter_token_ms": {
            "alone": alone,
            "beside_prefill": beside,
            "ratio": {name: beside[name] / alone[name] for name in alone},
            "num_running": NUM_RUNNING,
            "num_prefills": samples.num_prefills,
        },
        "rounds": {"decode_in_process_ms": samples.decode_in_process, "decode_streamed_ms": samples.decode_streamed},
    }


def _describe_gaps(milliseconds: list[float]) -> dict[str, float]:
    if not milliseconds:
        raise MeasurementError("all tokens of every stream came in one event, so there is no time between them")
    return {
        "p50": percentile(milliseconds, 50),
        "p95": percentile(milliseconds, 95),
        "mean": sum(milliseconds) / len(milliseconds),
        "max": max(milliseconds),
    }


def _circumstances(document: ResolvedDocument, samples: Samples) -> dict[str, Any]:
    return {
        **settings_of(document),
        "checkpoint": document.checkpoint.path,
        "foreign_cpu_shares": samples.foreign_cpu_shares,
        "num_disturbed": sum(share >= DISTURBED_SHARE for share in samples.foreign_cpu_shares),
        "versions": versions(),
        "machine": describe_machine(),
    }


async def _open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**22)

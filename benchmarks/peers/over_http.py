"""Our server and the peers', in turn, all asked through OpenAI's completions by the same client."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.aggregates import p50_and_p95
from benchmarks.errors import MeasurementError
from benchmarks.http_load import Dialect, run_round
from benchmarks.peers import measurements as m
from benchmarks.peers.catalog import PEERS, Peer, ServerOptions
from benchmarks.peers.in_process import Work
from benchmarks.peers.left_out import LeftOut
from benchmarks.peers.measurements import Measurements
from benchmarks.repetition import measured, report_progress
from benchmarks.served import ServedModel
from benchmarks.server_process import ServerProcess
from benchmarks.workload import Workload

_WARM_UP_TOKENS = 4


class PeerServer(ServerProcess):
    """A peer's own HTTP server."""

    def __init__(self, peer: Peer, options: ServerOptions) -> None:
        assert peer.serve is not None
        super().__init__(peer.serve(peer.environment, options), peer.environment_variables(options.threads))
        self._url = f"http://127.0.0.1:{options.port}"

    def find_url(self) -> str:
        return self._url


@dataclass
class Contender:
    """A server that is ready, and how it is asked."""

    name: str
    server: ServerProcess
    session: aiohttp.ClientSession
    dialect: Dialect

    async def run(self, workload: Workload, concurrency: int) -> tuple[float, dict[str, float]]:
        """Output tokens per second, and the requests' latencies."""
        outcome = await run_round(
            self.session, self.server.url, workload, concurrency=concurrency, stream=False, dialect=self.dialect
        )
        latencies = p50_and_p95([answer.latency for answer in outcome.answers])
        return workload.num_output_tokens / outcome.seconds, latencies

    def measure_memory(self, results: Measurements) -> None:
        """Raises MeasurementError when it has ended."""
        if not (pss_bytes := self.server.pss_bytes()):
            raise MeasurementError("the server ended after its last round")
        results.add(m.SERVER_RSS, self.name, self.server.peak_rss_bytes())
        results.add(m.SERVER_PSS, self.name, pss_bytes)


def compare_over_http(
    work: Work,
    serve_arguments: Sequence[str],
    peers: Sequence[str],
    *,
    concurrency: int,
    repetitions: int,
    quiet_wait: float,
    results: Measurements,
) -> dict[str, str]:
    """By peer that failed, at any time, why. Raises BenchmarkError when ours fails."""
    stack, left_out = AsyncExitStack(), LeftOut(results, m.HTTP_METRICS)
    with asyncio.Runner() as runner:
        try:
            contenders = [runner.run(_start_ours(stack, serve_arguments, results))]
            for name in peers:
                with left_out.if_it_fails(name):
                    contenders.append(runner.run(_start_peer(stack, PEERS[name], work, concurrency, results)))
            short = dataclasses.replace(work.workload, max_new_tokens=_WARM_UP_TOKENS)
            for contender in contenders:
                with left_out.if_it_fails(contender.name):
                    runner.run(contender.run(short, concurrency))
            for _ in range(repetitions):
                for contender in left_out.rest_of(contenders):
                    with left_out.if_it_fails(contender.name):
                        _measure(runner, contender, work.workload, concurrency, quiet_wait, results)
            for contender in left_out.rest_of(contenders):
                with left_out.if_it_fails(contender.name):
                    contender.measure_memory(results)
                    contender.server.stop()
        finally:
            runner.run(stack.aclose())
    return left_out.reasons


def _measure(
    runner: asyncio.Runner,
    contender: Contender,
    workload: Workload,
    concurrency: int,
    quiet_wait: float,
    results: Measurements,
) -> None:
    (rate, latencies), foreign = measured(lambda: runner.run(contender.run(workload, concurrency)), quiet_wait)
    results.add(m.HTTP, contender.name, rate)
    results.add(m.HTTP_P50, contender.name, latencies["p50"])
    results.add(m.HTTP_P95, contender.name, latencies["p95"])
    results.add_foreign_share(contender.name, foreign)
    report_progress(f"{contender.name}: {rate:.1f} output tokens/s over HTTP, others used {foreign:.0%} of the cores")


async def _start_ours(stack: AsyncExitStack, serve_arguments: Sequence[str], results: Measurements) -> Contender:
    return await _ready(stack, m.OURS, ServedModel(serve_arguments), {}, results)


async def _start_peer(
    stack: AsyncExitStack, peer: Peer, work: Work, concurrency: int, results: Measurements
) -> Contender:
    settings = work.settings
    model: Path = peer.convert(peer.environment, work.hf_directory, settings["dtype"])
    options = ServerOptions(model, settings["dtype"], settings["threads"], concurrency, _free_port())
    return await _ready(stack, peer.name, PeerServer(peer, options), peer.request_fields, results)


async def _ready(
    stack: AsyncExitStack, name: str, server: ServerProcess, fields: Mapping[str, object], results: Measurements
) -> Contender:
    """One after another, so that none is timed while another starts."""
    report_progress(f"{name}: starting its server")
    stack.enter_context(server)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    results.add(m.SERVER_START, name, await server.wait_until_ready(session))
    return Contender(name, server, session, completions(await _served_name(session, server.url), fields))


async def _served_name(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(f"{url}/v1/models") as reply:
            if reply.status != 200:
                raise MeasurementError(f"GET /v1/models was answered with status {reply.status}")
            body: dict[str, Any] = await reply.json()
    except aiohttp.ClientError as error:
        raise MeasurementError(f"GET /v1/models failed: {error}") from error
    return str(body["data"][0]["id"])


def completions(model: str, fields: Mapping[str, object]) -> Dialect:
    """POST /v1/completions with token ids. fields: more of the body. It does not stream."""

    def body(prompt: list[int], max_new_tokens: int, stream: bool) -> dict[str, Any]:
        assert not stream, "events of other servers do not say how many tokens have come"
        asked = {"model": model, "prompt": prompt, "max_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
        return asked | dict(fields)

    return Dialect("/v1/completions", body, lambda reply: int(reply["usage"]["completion_tokens"]))


def _free_port() -> int:
    """Free now; nothing else on this machine is expected to take it within the second."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

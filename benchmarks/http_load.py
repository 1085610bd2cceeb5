"""One round of a workload over HTTP: so many requests under way at a time, each timed as its client sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp
import msgspec

from benchmarks.errors import MeasurementError
from benchmarks.workload import Workload

_REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=600)


class Event(NamedTuple):
    """Of a streamed answer. seconds: since the request was sent. num_tokens: all that had come by then."""

    seconds: float
    num_tokens: int


@dataclass(frozen=True)
class Answer:
    """latency: seconds from request to end. first, last: of a streamed answer's events, else None."""

    latency: float
    first: Event | None = None
    last: Event | None = None

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time between tokens after the first event, which can carry several; None when it carried them all."""
        if self.first is None or self.last is None or self.first.num_tokens == self.last.num_tokens:
            return None
        return (self.last.seconds - self.first.seconds) / (self.last.num_tokens - self.first.num_tokens)


@dataclass
class Round:
    """All answers, in the order they ended, and seconds from the first request to the last answer."""

    seconds: float
    answers: list[Answer]


class Dialect(NamedTuple):
    """How a server is asked. body: of a prompt, the number of new tokens, and whether to stream.

    num_tokens: how many a reply, or a stream's event, says there are by then.
    """

    path: str
    body: Callable[[list[int], int, bool], dict[str, Any]]
    num_tokens: Callable[[Any], int]


def _generate_body(prompt: list[int], max_new_tokens: int, stream: bool) -> dict[str, Any]:
    sampling_params = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling_params, "stream": stream}


GENERATE = Dialect("/generate", _generate_body, lambda reply: int(reply["meta_info"]["completion_tokens"]))


async def run_round(
    session: aiohttp.ClientSession,
    url: str,
    workload: Workload,
    *,
    concurrency: int,
    stream: bool,
    dialect: Dialect = GENERATE,
) -> Round:
    """Raises MeasurementError when a request fails or is answered with another number of tokens."""
    prompts = iter(workload.prompts)
    answers: list[Answer] = []

    async def client(prompts: Iterator[list[int]]) -> None:
        for prompt in prompts:
            answers.append(await ask(session, url, prompt, workload.max_new_tokens, stream, dialect))

    started = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(client(prompts))
    except* (MeasurementError, aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as errors:
        first = errors.exceptions[0]
        raise MeasurementError(f"a request failed: {str(first) or type(first).__name__}") from first
    return Round(time.perf_counter() - started, answers)


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    prompt: list[int],
    max_new_tokens: int,
    stream: bool,
    dialect: Dialect = GENERATE,
) -> Answer:
    """One request. Raises MeasurementError and aiohttp's errors."""
    body = dialect.body(prompt, max_new_tokens, stream)
    started = time.perf_counter()
    async with session.post(f"{url}{dialect.path}", json=body, timeout=_REQUEST_TIMEOUT) as reply:
        if reply.status != 200:
            raise MeasurementError(f"status {reply.status}: {(await reply.text())[:500]}")
        pieces = await _read_events(reply, started) if stream else [(0.0, await reply.read())]
    latency = time.perf_counter() - started
    if not pieces:
        raise MeasurementError("a streamed answer had no events")
    # Decoded only now, for that takes time from the other answers.
    replies = ((seconds, msgspec.json.decode(data)) for seconds, data in (pieces[0], pieces[-1]))
    events = [Event(seconds, _num_tokens(reply, dialect)) for seconds, reply in replies]
    if events[-1].num_tokens != max_new_tokens:
        raise MeasurementError(f"{events[-1].num_tokens} tokens came back instead of {max_new_tokens}")
    return Answer(latency, *events) if stream else Answer(latency)


async def _read_events(reply: aiohttp.ClientResponse, started: float) -> list[tuple[float, bytes]]:
    """When each came, and its JSON."""
    events = []
    async for line in reply.content:
        if line.startswith(b"data: {"):
            events.append((time.perf_counter() - started, line.removeprefix(b"data: ")))
    return events


def _num_tokens(reply: Any, dialect: Dialect) -> int:
    if "error" in reply:
        raise MeasurementError(str(reply["error"]))
    return dialect.num_tokens(reply)

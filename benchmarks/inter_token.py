"""Time between the tokens of running requests, alone and while other requests' prompts are computed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from benchmarks.errors import MeasurementError
from benchmarks.http_load import GENERATE, Event, ask


@dataclass(frozen=True)
class Gaps:
    """seconds: of all running requests, one per token after a request's first."""

    seconds: list[float]
    num_prefills: int


async def gaps_while(
    session: aiohttp.ClientSession, url: str, running: list[list[int]], num_tokens: int, prefill: list[int] | None
) -> Gaps:
    """Stream `running`, and have `prefill` computed again and again meanwhile, one request at a time.

    Raises MeasurementError.
    """
    num_begun = 0
    all_begun = asyncio.Event()

    def begun() -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun == len(running):
            all_begun.set()

    async def prefills() -> int:
        assert prefill is not None
        await all_begun.wait()
        done = 0
        while not all(stream.done() for stream in streams):
            await ask(session, url, prefill, 1, stream=False)
            done += 1
        return done

    try:
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(_stream(session, url, prompt, num_tokens, begun)) for prompt in running]
            prefilling = group.create_task(prefills()) if prefill is not None else None
    except* (MeasurementError, aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as errors:
        first = errors.exceptions[0]
        raise MeasurementError(f"a request failed: {str(first) or type(first).__name__}") from first
    gaps = [gap for stream in streams for gap in gaps_between(stream.result())]
    return Gaps(gaps, prefilling.result() if prefilling is not None else 0)


async def _stream(
    session: aiohttp.ClientSession, url: str, prompt: list[int], num_tokens: int, begun: Callable[[], None]
) -> list[Event]:
    """begun: called when the first event has come."""
    started = time.perf_counter()
    pieces: list[tuple[float, bytes]] = []
    async with session.post(f"{url}{GENERATE.path}", json=GENERATE.body(prompt, num_tokens, True)) as reply:
        if reply.status != 200:
            raise MeasurementError(f"status {reply.status}: {(await reply.text())[:500]}")
        async for line in reply.content:
            if line.startswith(b"data: {"):
                pieces.append((time.perf_counter() - started, line.removeprefix(b"data: ")))
                if len(pieces) == 1:
                    begun()
    # Decoded only now, for that takes time from the other streams.
    events = [Event(seconds, GENERATE.num_tokens(msgspec.json.decode(data))) for seconds, data in pieces]
    if not events or events[-1].num_tokens != num_tokens:
        raise MeasurementError(f"a stream of {num_tokens} tokens ended early")
    return events


def gaps_between(events: list[Event]) -> list[float]:
    """One per token after the first event. Tokens that came in one event share its time."""
    gaps: list[float] = []
    for before, after in itertools.pairwise(events):
        count = after.num_tokens - before.num_tokens
        gaps += [(after.seconds - before.seconds) / count] * count if count else []
    return gaps

"""Gaps between tokens, against a server that holds its running streams up while it computes another prompt."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from benchmarks.errors import MeasurementError
from benchmarks.http_load import Event
from benchmarks.inter_token import Gaps, gaps_between, gaps_while

PREFILL = [1, 2, 3]
STREAMED = [4]


def test_tokens_of_one_event_share_its_time() -> None:
    events = [Event(1.0, 2), Event(1.5, 3), Event(2.5, 5), Event(2.6, 5)]
    assert gaps_between(events) == [0.5, 0.5, 0.5]


async def gaps_against(*, num_tokens: int, prefill: list[int] | None, missing: int = 0) -> tuple[Gaps, int]:
    """What is measured, and how many prompts the server computed meanwhile. missing: tokens that it never sends."""
    prefilled = 0
    computed = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal prefilled
        body = await request.json()
        if not body["stream"]:
            assert body["input_ids"] == PREFILL
            prefilled += 1
            computed.set()
            return web.json_response({"meta_info": {"completion_tokens": 1}})
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        count = body["sampling_params"]["max_new_tokens"] - missing
        for number in range(1, count + 1):
            if number == count and prefill is not None:
                await computed.wait()  # so that a prompt is certain to come while streams run
            await reply.write(f"data: {json.dumps({'meta_info': {'completion_tokens': number}})}\n\n".encode())
        await reply.write(b"data: [DONE]\n\n")
        return reply

    app = web.Application()
    app.router.add_post("/generate", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return await gaps_while(session, url, [STREAMED] * 2, num_tokens, prefill), prefilled
    finally:
        await runner.cleanup()


async def test_alone() -> None:
    gaps, _ = await gaps_against(num_tokens=5, prefill=None)
    assert len(gaps.seconds) == 2 * 4
    assert gaps.num_prefills == 0
    assert all(gap >= 0 for gap in gaps.seconds)


async def test_beside_prefills() -> None:
    gaps, prefilled = await gaps_against(num_tokens=4, prefill=PREFILL)
    assert len(gaps.seconds) == 2 * 3
    assert gaps.num_prefills == prefilled >= 1


async def test_a_stream_that_ends_early_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="a stream of 4 tokens ended early"):
        await gaps_against(num_tokens=4, prefill=None, missing=1)

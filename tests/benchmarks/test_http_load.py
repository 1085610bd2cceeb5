"""A round of requests against servers that answer well, badly, or not at all."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from benchmarks.errors import MeasurementError
from benchmarks.http_load import Round, run_round
from benchmarks.workload import Workload

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
WORKLOAD = Workload(prompts=[[1, 2], [3], [4, 5, 6]], max_new_tokens=4)


async def round_against(handler: Handler, *, stream: bool, concurrency: int = 2) -> Round:
    app = web.Application()
    app.router.add_post("/generate", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession() as session:
            port = runner.addresses[0][1]
            url = f"http://127.0.0.1:{port}"
            return await run_round(session, url, WORKLOAD, concurrency=concurrency, stream=stream)
    finally:
        await runner.cleanup()


def reply(num_tokens: int) -> dict[str, Any]:
    return {"text": "", "output_ids": [7] * num_tokens, "meta_info": {"completion_tokens": num_tokens}}


async def test_every_prompt_is_asked_once_and_never_more_than_allowed_at_a_time() -> None:
    asked: list[dict[str, Any]] = []
    running = most = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        asked.append(await request.json())
        running -= 1
        return web.json_response(reply(4))

    outcome = await round_against(answer, stream=False)
    assert sorted(body["input_ids"] for body in asked) == sorted(WORKLOAD.prompts)
    assert asked[0]["sampling_params"] == {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    assert most <= 2
    assert len(outcome.answers) == 3
    assert all(0 < answer.latency <= outcome.seconds for answer in outcome.answers)


async def test_events_of_a_stream_are_timed_apart() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for num_tokens in (1, 3, 4):
            await response.write(f"data: {json.dumps(reply(num_tokens))}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    outcome = await round_against(answer, stream=True)
    for answered in outcome.answers:
        assert answered.first is not None
        assert answered.last is not None
        assert (answered.first.num_tokens, answered.last.num_tokens) == (1, 4)
        assert 0 < answered.first.seconds <= answered.last.seconds <= answered.latency


async def refuse(request: web.Request) -> web.StreamResponse:
    return web.Response(status=400, text="max_new_tokens is too large")


async def answer_too_little(request: web.Request) -> web.StreamResponse:
    return web.json_response(reply(3))


async def fail_half_way(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(f"data: {json.dumps(reply(1))}\n\n".encode())
    await response.write(b'data: {"error": {"message": "a rank died"}}\n\n')
    return response


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def stream_nothing(request: web.Request) -> web.StreamResponse:
    return web.Response(text="data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("handler", "stream", "message"),
    [
        (refuse, False, "status 400: max_new_tokens is too large"),
        (answer_too_little, False, "3 tokens came back instead of 4"),
        (fail_half_way, True, "a rank died"),
        (hang_up, False, "a request failed: .+"),
        (stream_nothing, True, "no events"),
    ],
)
async def test_what_fails_ends_the_round_with_the_reason(handler: Handler, stream: bool, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        await round_against(handler, stream=stream)

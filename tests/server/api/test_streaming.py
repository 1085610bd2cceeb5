"""An event stream whose client has stopped reading."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from server.api.streaming import EventStream
from server.frontend.detokenizer import DetokenizerFactory
from server.frontend.engine_client import EngineClient
from server.frontend.generation import Generation
from server.frontend.request_builder import BuiltSample, TextOptions
from server.frontend.sample import Sample
from server.frontend.tokenizer import PromptTokenizer
from server.ipc import EngineLimits, EngineReady
from server.request import EngineRequest, SamplingParams

READY = EngineReady(
    limits=EngineLimits(
        vocab_size=400, max_model_len=9, block_size=16, num_blocks=1, max_batched_tokens=9, max_running_requests=9
    ),
    rank_pids=[],
    weights_bytes_per_rank=0,
    kv_cache_bytes_per_rank=0,
    load_seconds=0.0,
    rss_after_imports_bytes=0,
    rss_ready_bytes=0,
)


class Events:
    """One event at the beginning."""

    is_openai = False

    def first(self) -> Iterable[Any]:
        return ["hello"]

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        return []

    def last(self) -> Iterable[Any]:
        return []


async def for_ever() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def test_it_is_aborted_at_the_deadline(
    tokenizer_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = EngineClient(max_queued_requests=4, max_silence=60)
    client.open(tmp_path / "s")
    client.mark_ready(READY)
    request = EngineRequest(request_id="a", prompt_token_ids=[1], params=SamplingParams())
    detokenizers = DetokenizerFactory(PromptTokenizer.load(tokenizer_directory))
    closed: list[str] = []
    generation = Generation(
        client,
        detokenizers,
        [[BuiltSample(request, TextOptions())]],
        streaming=True,
        timeout=0.2,
        on_close=lambda: closed.append("closed"),
    )
    sent: list[str] = []

    async def send(message: Message) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await for_ever()

    try:
        generation.start()
        assert client.num_in_flight == 1
        async with asyncio.timeout(30):
            await EventStream(generation, Events())({"type": "http"}, for_ever, send)
        assert sent == ["http.response.start", "http.response.body"]
        assert (client.num_in_flight, closed) == (0, ["closed"])
        assert "--request-timeout" in caplog.text
    finally:
        await client.close("the test is over")
        client.terminate()

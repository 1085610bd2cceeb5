"""The engine client over its socket: one sequence's trouble is no other's, and a broken connection says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import zmq
import zmq.asyncio

from server import ipc
from server.errors import MegaserveError, OverloadedError, RequestFailedError
from server.frontend.engine_client import EngineClient
from server.frontend.engine_connection import EngineConnection
from server.ipc import AbortRequests, AddRequests, EngineLimits, EngineReady, EngineStats, Heartbeat, StepOutputs
from server.request import EngineRequest, Grammar, RequestOutput, SamplingParams

READY = EngineReady(
    limits=EngineLimits(
        vocab_size=9, max_model_len=9, block_size=16, num_blocks=1, max_batched_tokens=9, max_running_requests=9
    ),
    rank_pids=[],
    weights_bytes_per_rank=0,
    kv_cache_bytes_per_rank=0,
    load_seconds=0.0,
    rss_after_imports_bytes=0,
    rss_ready_bytes=0,
)


class Sink:
    """Keeps what it gets; a broken one cannot take any output."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.outputs: list[RequestOutput] = []
        self.error: MegaserveError | None = None
        self.done = asyncio.Event()
        self._is_broken = is_broken

    def put(self, output: RequestOutput) -> None:
        if self._is_broken:
            raise ValueError("cannot take it")
        self.outputs.append(output)
        self.done.set()

    def fail(self, error: MegaserveError) -> None:
        self.error = error
        self.done.set()


class Ends(NamedTuple):
    """Both ends of the socket."""

    client: EngineClient
    connection: EngineConnection
    ranks: zmq.asyncio.Socket

    async def received(self) -> object:
        async with asyncio.timeout(30):
            return ipc.decode_to_engine(await self.ranks.recv())

    async def send(self, message: ipc.FromEngine) -> None:
        await self.ranks.send(ipc.encode(message))


@asynccontextmanager
async def connected(directory: Path) -> AsyncIterator[Ends]:
    client = EngineClient(max_queued_requests=4, max_silence=60)
    connection = client.open(directory / "s")
    client.mark_ready(READY)
    context = zmq.asyncio.Context()
    ranks = context.socket(zmq.PAIR)
    ipc.configure(ranks)
    ranks.connect(ipc.address(directory / "s"))
    try:
        yield Ends(client, connection, ranks)
    finally:
        await client.close("the test is over")
        client.terminate()
        context.destroy(linger=0)


def request(name: str, grammar: str | None = None) -> EngineRequest:
    made = None if grammar is None else Grammar(kind="regex", text=grammar, field="regex")
    return EngineRequest(request_id=name, prompt_token_ids=[1], params=SamplingParams(grammar=made))


async def test_what_cannot_be_sent_is_the_callers_error_alone(tmp_path: Path) -> None:
    async with connected(tmp_path) as ends:
        with pytest.raises(UnicodeEncodeError):
            ends.client.add([request("a"), request("b", "\ud800")], [Sink(), Sink()])
        assert ends.client.num_in_flight == 0
        ends.client.add([request("c")], [Sink()])
        assert await ends.received() == AddRequests([request("c")])


async def test_what_one_turn_adds_travels_together(tmp_path: Path) -> None:
    async with connected(tmp_path) as ends:
        ends.client.add([request("a"), request("b", "x+")], [Sink(), Sink()])
        ends.client.add([request("c")], [Sink()])
        assert await ends.received() == AddRequests([request("a"), request("b", "x+"), request("c")])


async def test_too_many_are_refused_and_none_is_sent(tmp_path: Path) -> None:
    async with connected(tmp_path) as ends:
        with pytest.raises(OverloadedError, match="has 5"):
            ends.client.check_can_add(5)
        ends.client.check_can_add(4)
        with pytest.raises(OverloadedError):
            ends.client.add([request(name) for name in "abcde"], [Sink() for _ in "abcde"])
        assert ends.client.num_in_flight == 0


async def test_an_output_that_cannot_be_processed_ends_its_own_sequence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(tmp_path) as ends:
        broken, sound = Sink(is_broken=True), Sink()
        ends.client.add([request("a"), request("b")], [broken, sound])
        await ends.received()
        outputs = [RequestOutput(request_id="a", token_ids=[1]), RequestOutput(request_id="b", token_ids=[2])]
        await ends.send(StepOutputs(outputs, EngineStats()))
        async with asyncio.timeout(30):
            await sound.done.wait()
        assert sound.outputs == outputs[1:]
        assert isinstance(broken.error, RequestFailedError)
        assert await ends.received() == AbortRequests(["a"])
        assert ends.client.num_in_flight == 1
        assert not ends.connection.failed.done()
    assert "sequence a could not be processed" in caplog.text


class BrokenObserver:
    """An `EngineObserver` that ends whoever calls it."""

    def take_steps(self, steps: Sequence[ipc.StepRecord]) -> None:
        raise ValueError("cannot count")

    def take_token_gap(self, seconds: float, num_tokens: int) -> None:
        raise AssertionError("no tokens were sent")


async def test_a_connection_that_breaks_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(tmp_path) as ends:
        ends.client.observer = BrokenObserver()
        await ends.send(Heartbeat(EngineStats()))
        async with asyncio.timeout(30):
            assert await ends.connection.failed == "the connection to the ranks failed (ValueError)"
    assert "cannot count" in caplog.text


async def test_closing_is_no_failure(tmp_path: Path) -> None:
    async with connected(tmp_path) as ends:
        pass
    assert not ends.connection.failed.done()

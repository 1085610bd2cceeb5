"""An engine that computes nothing: every running sequence gets a token in every step, at the same pace.

What it measures is when things pass it: a sequence's arrival, and the sending of each token, in seconds of the
monotonic clock, which is one for all processes of a machine. A sequence is known by the first token of its prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import zmq

from server import ipc
from server.process_lifetime import die_with_parent
from server.request import EngineRequest, RequestOutput

VOCABULARY = 1024
TOKEN = 32
_NUM_BLOCKS = 4096


class StubEngine:
    """step_seconds: from one token of a sequence to its next."""

    def __init__(self, socket: zmq.Socket[bytes], step_seconds: float, times_file: Path) -> None:
        self._socket = socket
        self._step_seconds = step_seconds
        self._times_file = times_file
        self._running: dict[str, EngineRequest] = {}
        self._made: dict[str, int] = {}
        self._num_steps = 0
        self._times: dict[int, list[float]] = {}  # by client: arrival, then each token

    def run(self) -> None:
        """Until told to shut down."""
        next_step = time.monotonic()
        while True:
            wait = max(0.0, next_step - time.monotonic()) if self._running else 0.2
            if self._socket.poll(int(wait * 1000)):
                if not self._handle(ipc.decode_to_engine(self._socket.recv())):
                    return
            elif not self._running:
                self._socket.send(ipc.encode(ipc.Heartbeat(self._stats())))
            if self._running and time.monotonic() >= next_step:
                self._step()
                next_step = max(next_step + self._step_seconds, time.monotonic())

    def _handle(self, message: ipc.ToEngine) -> bool:
        now = time.monotonic()
        match message:
            case ipc.AddRequests(requests):
                for request in requests:
                    self._running[request.request_id] = request
                    self._made[request.request_id] = 0
                    self._times[request.prompt_token_ids[0]] = [now]
            case ipc.AbortRequests(request_ids):
                for request_id in request_ids:
                    self._running.pop(request_id, None)
            case ipc.Shutdown():
                return False
        return True

    def _step(self) -> None:
        self._num_steps += 1
        outputs = [self._output(request) for request in self._running.values()]
        frame = ipc.encode(ipc.StepOutputs(outputs, self._stats()))
        now = time.monotonic()
        self._socket.send(frame)
        for request in self._running.values():
            self._times[request.prompt_token_ids[0]].append(now)
        for output in outputs:
            if output.finish_reason is not None:
                del self._running[output.request_id]
        if not self._running:
            self._write()

    def _output(self, request: EngineRequest) -> RequestOutput:
        self._made[request.request_id] += 1
        is_last = self._made[request.request_id] == request.params.max_new_tokens
        return RequestOutput(
            request_id=request.request_id, token_ids=[TOKEN], finish_reason="length" if is_last else None
        )

    def _stats(self) -> ipc.EngineStats:
        return ipc.EngineStats(
            num_steps=self._num_steps,
            num_running=len(self._running),
            num_blocks=_NUM_BLOCKS,
            num_free_blocks=_NUM_BLOCKS - len(self._running),
        )

    def _write(self) -> None:
        """Replaced whole, so that nobody reads half of it."""
        unfinished = self._times_file.with_suffix(".part")
        unfinished.write_text(json.dumps(self._times))
        unfinished.replace(self._times_file)


def main() -> None:
    """`python -m benchmarks.stub_engine --socket FILE --times FILE --step-seconds S`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--times", type=Path, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    arguments = parser.parse_args()
    die_with_parent()
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
    ipc.configure(socket)
    socket.connect(ipc.address(arguments.socket))
    limits = ipc.EngineLimits(
        vocab_size=VOCABULARY, max_model_len=4096, block_size=16, num_blocks=_NUM_BLOCKS, max_batched_tokens=4096,
        max_running_requests=4096,
    )  # fmt: skip
    ready = ipc.EngineReady(
        limits=limits, rank_pids=[os.getpid()], weights_bytes_per_rank=0, kv_cache_bytes_per_rank=0, load_seconds=0.0,
        rss_after_imports_bytes=0, rss_ready_bytes=0,
    )  # fmt: skip
    socket.send(ipc.encode(ready))
    StubEngine(socket, arguments.step_seconds, arguments.times).run()


if __name__ == "__main__":
    main()

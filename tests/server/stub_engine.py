"""An engine without a model, as a process of its own: speaks `server.ipc`, answers by fixed rules, fails on demand.

The tokens of an answer are the prompt's, again and again. A request's seed asks for special behaviour:
CRASH ends the process, FAIL_ONE reports an error for this request alone, SILENT stops all messages, SLOW makes a token
every 50 ms, NAN and INFINITE put such log-probabilities into the answer, STUCK is never run, though all looks alive.
Every added and aborted request, and every control, is written to the log file, one JSON object a line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import zmq

from server.ipc import (
    AbortRequests,
    AddRequests,
    Control,
    ControlDone,
    EngineFailed,
    EngineLimits,
    EngineReady,
    EngineStats,
    Heartbeat,
    Shutdown,
    StepOutputs,
    StepRecord,
    address,
    configure,
    decode_to_engine,
    encode,
)
from server.process_lifetime import die_with_parent
from server.request import EngineRequest, RequestOutput, RequestTimings, TokenLogprob

CRASH, FAIL_ONE, SILENT, SLOW, NAN, INFINITE, STUCK = range(1001, 1008)

LIMITS = EngineLimits(
    vocab_size=400, max_model_len=256, block_size=16, num_blocks=64, max_batched_tokens=512, max_running_requests=64
)


class StubEngine:
    """Steps like the real one: every running request gets a token in every step."""

    def __init__(self, socket: zmq.Socket[bytes], log: Path) -> None:
        self.socket = socket
        self.log = log
        self.running: dict[str, tuple[EngineRequest, itertools.cycle[int]]] = {}
        self.made: dict[str, list[int]] = {}
        self.waiting: set[str] = set()
        self.is_paused = False
        self.num_steps = 0
        self.num_generated = 0

    def run(self) -> None:
        while True:
            if not self.has_work and not self.socket.poll(200):
                self.socket.send(encode(Heartbeat(self.stats())))
            while self.socket.poll(0):
                if not self.handle(decode_to_engine(self.socket.recv())):
                    return
            if self.has_work:
                if any(request.params.seed == SLOW for request, _ in self.running.values()):
                    time.sleep(0.05)
                record = StepRecord("decode", 0.001, len(self.running), len(self.running))
                self.num_steps += 1
                self.num_generated += len(self.running)
                outputs = [self.step(request, tokens) for request, tokens in list(self.running.values())]
                self.socket.send(encode(StepOutputs(outputs, self.stats(), [record])))

    @property
    def has_work(self) -> bool:
        return bool(self.running) and not self.is_paused

    def handle(self, message: object) -> bool:
        match message:
            case AddRequests(requests):
                for request in requests:
                    self.add(request)
            case AbortRequests(request_ids):
                for request_id in request_ids:
                    was_running = self.running.pop(request_id, None) is not None
                    self.waiting.discard(request_id)
                    self.note({"aborted": request_id, "was_running": was_running})
            case Control(control_id, action, num_steps):
                self.note({"control": action, "num_steps": num_steps})
                self.is_paused = {"pause": True, "resume": False}.get(action, self.is_paused)
                error = "no profile is being recorded" if action == "stop_profile" else ""
                self.socket.send(encode(Heartbeat(self.stats())))
                self.socket.send(encode(ControlDone(control_id, error)))
            case Shutdown():
                return False
        return True

    def add(self, request: EngineRequest) -> None:
        seed = request.params.seed
        self.note(
            {
                "added": request.request_id,
                "seed": seed,
                "priority": request.priority,
                "streamed": request.is_streamed,
                "prompt": request.prompt_token_ids,
                **({} if request.params.grammar is None else {"grammar": request.params.grammar.text}),
                **images_of(request),
            }
        )
        if seed == CRASH:
            os._exit(1)
        if seed == SILENT:
            time.sleep(3600)
        if seed == STUCK:
            self.waiting.add(request.request_id)
            return
        self.running[request.request_id] = (request, itertools.cycle(request.prompt_token_ids))
        self.made[request.request_id] = []

    def step(self, request: EngineRequest, tokens: itertools.cycle[int]) -> RequestOutput:
        request_id, params = request.request_id, request.params
        if params.seed == FAIL_ONE:
            del self.running[request_id]
            return RequestOutput(request_id=request_id, finish_reason="error", error="this one failed")
        token = next(tokens)
        made = self.made[request_id]
        made.append(token)
        stopped = token in params.stop_token_ids and len(made) > params.min_new_tokens
        finish = "stop" if stopped else "length" if len(made) == params.max_new_tokens else None
        if finish:
            del self.running[request_id]
        return RequestOutput(
            request_id=request_id,
            token_ids=[token],
            logprobs=None if params.logprobs is None else [logprob_of(token, params.logprobs, params.seed)],
            prompt_logprobs=prompt_logprobs_of(request) if len(made) == 1 else None,
            num_cached_tokens=len(request.prompt_token_ids) // 16 * 16,
            finish_reason=finish,
            stop_token_id=token if stopped else None,
            timings=RequestTimings(queue_seconds=0.0, time_to_first_token_seconds=0.0, total_seconds=0.0)
            if finish
            else None,
        )

    def stats(self) -> EngineStats:
        return EngineStats(
            num_steps=self.num_steps,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_blocks=64,
            num_free_blocks=64 - len(self.running),
            total_generated_tokens=self.num_generated,
            is_paused=self.is_paused,
        )

    def note(self, entry: dict[str, object]) -> None:
        with self.log.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def images_of(request: EngineRequest) -> dict[str, object]:
    """What the engine could read of a request's images when it came."""
    if not request.images:
        return {}
    images = [
        {
            "digest": image.digest,
            "first_token": image.first_token,
            "num_tokens": image.num_tokens,
            "shape": image.shape,
            "sum": float(np.fromfile(image.pixels_file, dtype=np.float32).reshape(image.shape).sum()),
        }
        for image in request.images
    ]
    return {"images": images}


def logprob_of(token: int, num_top: int, seed: int | None) -> TokenLogprob:
    value = {NAN: float("nan"), INFINITE: float("-inf")}.get(seed or 0, -0.5)
    others = [(token + i) % LIMITS.vocab_size for i in range(num_top)]
    return TokenLogprob(token, value, others, [value - i for i in range(num_top)])


def prompt_logprobs_of(request: EngineRequest) -> list[TokenLogprob | None] | None:
    params = request.params
    if params.prompt_logprobs is None:
        return None
    start = params.prompt_logprobs_start
    entries: list[TokenLogprob | None] = [
        logprob_of(token, params.prompt_logprobs, None) for token in request.prompt_token_ids[start:]
    ]
    if start == 0:
        entries[0] = None
    return entries


def meet(log: Path, start: str, rank: int, num_ranks: int) -> list[int]:
    """Process ids of all ranks of this start, once all have left theirs beside the log."""
    files = [log.with_name(f"{start}.{rank}") for rank in range(num_ranks)]
    own = files[rank]
    own.with_name(f"{own.name}.part").write_text(str(os.getpid()))
    own.with_name(f"{own.name}.part").rename(own)
    while not all(file.exists() for file in files):
        time.sleep(0.02)
    return [int(file.read_text()) for file in files]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--log-file", type=Path, required=True)
    parser.add_argument("--fail-to-load", action="store_true")
    parser.add_argument("--load-seconds", type=float, default=0)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--num-ranks", type=int, default=1)
    arguments = parser.parse_args()
    die_with_parent()
    time.sleep(arguments.load_seconds)
    rank_pids = meet(arguments.log_file, arguments.socket.stem, arguments.rank, arguments.num_ranks)
    if arguments.rank != 0:
        time.sleep(3600)
    run(arguments.socket, arguments.log_file, rank_pids, fail_to_load=arguments.fail_to_load)


def run(socket_file: Path, log: Path, rank_pids: list[int], *, fail_to_load: bool = False) -> None:
    """The life of rank 0; the others only live."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
    configure(socket)
    socket.connect(address(socket_file))
    if fail_to_load:
        socket.linger = 1000
        socket.send(encode(EngineFailed("weights.pt: this file is damaged")))
        socket.close()
        sys.exit(1)
    ready = EngineReady(
        limits=LIMITS,
        rank_pids=rank_pids,
        weights_bytes_per_rank=1,
        kv_cache_bytes_per_rank=1,
        load_seconds=0.0,
        rss_after_imports_bytes=1,
        rss_ready_bytes=1,
    )
    socket.send(encode(ready))
    StubEngine(socket, log).run()


if __name__ == "__main__":
    main()

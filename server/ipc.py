"""Messages between the HTTP process and the ranks, and the sockets they travel on.

Each rank's process reads one order from its standard input. All else is between the HTTP process and rank 0: one pyzmq
PAIR socket over a unix socket file; each frame is one msgpack-encoded tagged message. The HTTP process binds (it
outlives the ranks and is there first), rank 0 connects. A new group of ranks gets a new path, so a dead group's late
messages cannot reach a live one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import zmq

from server.request import EngineRequest, RequestOutput


class RankOrder(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP -> the process of a rank, once and on its standard input: who it is, and what it serves.

    rendezvous: a file that does not exist yet, by which the ranks of one start find each other. document, socket: files
    with the resolved arguments and of the socket, both for rank 0.
    """

    rank: int
    world_size: int
    rendezvous: str
    document: str
    socket: str


class AddRequests(msgspec.Struct, tag=True, frozen=True):
    """HTTP -> engine: new sequences."""

    requests: list[EngineRequest]


class _AddEncodedRequests(msgspec.Struct, tag="AddRequests", frozen=True):
    requests: list[msgspec.Raw]


class AbortRequests(msgspec.Struct, tag=True, frozen=True):
    """HTTP -> engine: forget these; unknown ids are ignored. No output follows for them."""

    request_ids: list[str]


ControlAction = Literal["flush_cache", "pause", "resume", "start_profile", "stop_profile"]


class Control(msgspec.Struct, tag=True, frozen=True):
    """HTTP -> engine: act between two steps, then answer with the ControlDone of this id.

    flush_cache: forget every cached block. pause: run no step until resume; sequences stay where they are.
    start_profile: record the next `num_steps` steps on every rank; stop_profile: write what was recorded until now.
    """

    control_id: int
    action: ControlAction
    num_steps: int = 0


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """HTTP -> engine: stop all ranks now, in order, with exit status 0."""


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the HTTP process needs to refuse a request that can never run.

    vocab_size: ids below it may appear in a prompt. max_model_len: prompt plus generated tokens of one sequence.
    num_blocks * block_size: tokens of KV cache in all; one sequence must fit in it.
    """

    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_batched_tokens: int
    max_running_requests: int


class EngineReady(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """engine -> HTTP: loaded and warm. rank_pids: process ids by global rank (meaningful on this node)."""

    limits: EngineLimits
    rank_pids: list[int]
    weights_bytes_per_rank: int
    kv_cache_bytes_per_rank: int
    load_seconds: float
    rss_after_imports_bytes: int
    rss_ready_bytes: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since start (num_steps, total_) and gauges, as of one step.

    num_steps: of those that computed tokens. num_compiling: of those that wait, how many wait for their grammar.
    total_drafts: guesses of one or more tokens together, total_draft_tokens, of which total_accepted_tokens came true.
    """

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_compiling: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    total_prompt_tokens: int = 0
    total_generated_tokens: int = 0
    total_cached_tokens: int = 0
    total_preemptions: int = 0
    total_split_prefills: int = 0
    total_finished: int = 0
    total_aborted: int = 0
    last_step_seconds: float = 0.0
    total_images_encoded: int = 0
    total_image_cache_hits: int = 0
    total_encoder_seconds: float = 0.0
    total_drafts: int = 0
    total_draft_tokens: int = 0
    total_accepted_tokens: int = 0
    is_paused: bool = False
    is_profiling: bool = False


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """One step. phase: whether its sequences were all decoding, all at their prompt, or some of each."""

    phase: Literal["decode", "prefill", "mixed"]
    seconds: float
    batch_size: int
    num_tokens: int


class StepOutputs(msgspec.Struct, tag=True, frozen=True):
    """engine -> HTTP: everything one step produced. steps: those that ran since the last message."""

    outputs: list[RequestOutput]
    stats: EngineStats
    steps: list[StepRecord] = []


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """engine -> HTTP: fresh counters and gauges, after a step without outputs and every second without a step."""

    stats: EngineStats
    steps: list[StepRecord] = []


class ControlDone(msgspec.Struct, tag=True, frozen=True):
    """engine -> HTTP: a Control was carried out, or why not."""

    control_id: int
    error: str = ""


class EngineFailed(msgspec.Struct, tag=True, frozen=True):
    """engine -> HTTP: the ranks are about to exit; reason is for operators."""

    reason: str


ToEngine = AddRequests | AbortRequests | Control | Shutdown
FromEngine = EngineReady | StepOutputs | Heartbeat | ControlDone | EngineFailed

_encoder = msgspec.msgpack.Encoder()
_to_engine_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine_decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine | RankOrder) -> bytes:
    """One frame for one message."""
    return _encoder.encode(message)


def encode_request(request: EngineRequest) -> bytes:
    """A part for `join_requests`. Raises UnicodeEncodeError for what is no text."""
    return _encoder.encode(request)


def join_requests(encoded: Iterable[bytes]) -> bytes:
    """The frame of an AddRequests message."""
    return _encoder.encode(_AddEncodedRequests([msgspec.Raw(part) for part in encoded]))


def decode_order(data: bytes) -> RankOrder:
    """Raises msgspec.ValidationError on anything else."""
    return msgspec.msgpack.decode(data, type=RankOrder)


def decode_to_engine(frame: bytes) -> ToEngine:
    """Raises msgspec.ValidationError on anything that is not a message for the engine."""
    return _to_engine_decoder.decode(frame)


def decode_from_engine(frame: bytes) -> FromEngine:
    """Raises msgspec.ValidationError on anything that is not a message from the engine."""
    return _from_engine_decoder.decode(frame)


def address(socket_file: Path) -> str:
    """The zmq address of a unix socket file; its path must stay under 108 bytes (a kernel limit)."""
    return f"ipc://{socket_file}"


def configure(socket: zmq.Socket[Any]) -> None:
    """Unlimited queues (the frontend bounds what is in flight) and no lingering at exit."""
    socket.set_hwm(0)
    socket.linger = 0

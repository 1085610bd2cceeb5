"""Messages between the HTTP process and rank 0, and the sockets they travel on.

One pyzmq PAIR socket over a unix socket file; each frame is one msgpack-encoded tagged message. The HTTP process binds
(it outlives the ranks and is there first), rank 0 connects. A new group of ranks gets a new path, so a dead group's
late messages cannot reach a live one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import zmq

from server.request import EngineRequest, RequestOutput


class AddRequests(msgspec.Struct, tag=True, frozen=True):
    """HTTP -> engine: new sequences."""

    requests: list[EngineRequest]


class AbortRequests(msgspec.Struct, tag=True, frozen=True):
    """HTTP -> engine: forget these; unknown ids are ignored. No output follows for them."""

    request_ids: list[str]


class FlushPrefixCache(msgspec.Struct, tag=True, frozen=True):
    """HTTP -> engine: forget every cached block that no running request holds."""


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
    """Counters since start (num_, total_) and gauges, as of one step."""

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
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


class StepOutputs(msgspec.Struct, tag=True, frozen=True):
    """engine -> HTTP: everything one step produced."""

    outputs: list[RequestOutput]
    stats: EngineStats


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """engine -> HTTP: sent at least every second while idle; proof of progress and fresh gauges."""

    stats: EngineStats


class EngineFailed(msgspec.Struct, tag=True, frozen=True):
    """engine -> HTTP: the ranks are about to exit; reason is for operators."""

    reason: str


ToEngine = AddRequests | AbortRequests | FlushPrefixCache | Shutdown
FromEngine = EngineReady | StepOutputs | Heartbeat | EngineFailed

_encoder = msgspec.msgpack.Encoder()
_to_engine_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine_decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """One frame for one message."""
    return _encoder.encode(message)


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

"""What a rank does: join the group, build the model, then lead (rank 0) or follow."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
import zmq

from model_providers.errors import ModelProviderError
from model_providers.parallel import broadcast_bytes, gather_pids, join_world, shutdown_parallel
from server.config import ResolvedDocument
from server.engine.build import BuiltRank, build_rank
from server.engine.leader import Leader
from server.engine.model_runner import follow
from server.engine.profiler import RankProfiler
from server.engine.warmup import warm_up
from server.errors import ConfigurationError
from server.ipc import EngineFailed, EngineReady, address, configure, encode
from server.log_format import configure_logging

logger = logging.getLogger(__name__)


def run_rank(document_path: Path | None, socket_path: Path | None) -> int:
    """Serve until told to stop -> the exit status. Rank 0 needs both paths; the others get the document from it."""
    rss_after_imports = _resident_bytes()
    join_world()
    rank = dist.get_rank()
    data = document_path.read_bytes() if rank == 0 and document_path is not None else None
    document = ResolvedDocument.from_json(broadcast_bytes(data))
    configure_logging(str(document.values["log_level"]), document.values["log_format"], rank=rank)
    torch.set_num_threads(document.values["threads"])
    rank_pids = gather_pids()
    socket = _connect(socket_path) if rank == 0 else None
    profiler = RankProfiler(document.values["profile_dir"], rank)
    try:
        built = build_rank(document)
        warm_up(built)
        if socket is None:
            follow(built.runner, profiler)
        else:
            socket.send(encode(_ready(built, rank_pids, rss_after_imports)))
            Leader(built.engine, socket, profiler).run()
            built.engine.close()
    except (ModelProviderError, ConfigurationError) as error:
        return _fail(socket, str(error))
    except Exception as error:  # whatever ends this rank must be said to the clients that wait for it
        logger.exception("rank %d failed", rank)
        return _fail(socket, f"rank {rank}: {type(error).__name__}: {error}")
    shutdown_parallel()
    return 0


def _connect(socket_path: Path | None) -> zmq.Socket[bytes]:
    assert socket_path is not None, "rank 0 needs --socket"
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
    configure(socket)
    socket.connect(address(socket_path))
    return socket


def _ready(built: BuiltRank, rank_pids: list[int], rss_after_imports: int) -> EngineReady:
    return EngineReady(
        limits=built.limits,
        rank_pids=rank_pids,
        weights_bytes_per_rank=built.weights_bytes,
        kv_cache_bytes_per_rank=built.kv_cache_bytes,
        load_seconds=built.load_seconds,
        rss_after_imports_bytes=rss_after_imports,
        rss_ready_bytes=_resident_bytes(),
    )


def _fail(socket: zmq.Socket[bytes] | None, reason: str) -> int:
    print(f"megaserve: {reason}", file=sys.stderr, flush=True)
    if socket is not None:
        socket.linger = 1000  # milliseconds; the message should still get out
        socket.send(encode(EngineFailed(reason)))
        socket.close()
        zmq.Context.instance().term()
    return 1


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)

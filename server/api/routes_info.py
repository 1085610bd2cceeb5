"""What is being served, and how it is doing."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from server.api.context import ServerContext, context_of
from server.api.streaming import JsonReply

router = APIRouter()

_DISTRIBUTIONS = ("megaserve", "torch", "megatron-core", "transformers", "tokenizers", "fastapi", "uvicorn")

_REQUEST_LIMITS = (
    "max_body_mb",
    "max_headers",
    "max_header_kb",
    "max_images",
    "max_image_mb",
    "max_image_pixels",
    "max_choices",
    "max_stop_strings",
    "max_logprobs",
    "max_batch_items",
    "max_queued_requests",
    "request_timeout",
    "default_max_tokens",
)


@router.get("/v1/models", response_model=None)
async def models(request: Request) -> Response:
    """The one model, in OpenAI's list."""
    context = context_of(request)
    ready = context.client.ready_info
    model = {
        "id": context.model_name,
        "object": "model",
        "created": int(context.start_time),
        "owned_by": "megaserve",
        "max_model_len": ready.limits.max_model_len if ready else None,
    }
    return JsonReply({"object": "list", "data": [model]})


@router.get("/version", response_model=None)
async def version_of_server() -> Response:
    """megaserve's version."""
    return JsonReply({"version": version("megaserve")})


@router.get("/server_info", response_model=None)
async def server_info(request: Request) -> Response:
    """Every argument with its source, the checkpoint, limits and counters, versions."""
    context = context_of(request)
    client = context.client
    readiness = client.readiness()
    return JsonReply(
        {
            "model": context.model_name,
            "model_kind": context.document.kind,
            "status": readiness.status,
            "reason": readiness.reason or None,
            "uptime_seconds": time.time() - context.start_time,
            "num_restarts": client.num_restarts,
            "num_in_flight": client.num_in_flight,
            "checkpoint": _checkpoint(context),
            "limits": {name: getattr(context.config, name) for name in _REQUEST_LIMITS},
            "engine": client.ready_info,
            "stats": client.stats,
            "versions": versions(),
            "document": context.document.without_secrets(),
        }
    )


@router.get("/load", response_model=None)
async def load(request: Request) -> Response:
    """How busy it is, for load balancers."""
    client = context_of(request).client
    stats = client.stats
    return JsonReply(
        {
            "server_load": client.num_in_flight,
            "num_requests_running": stats.num_running,
            "num_requests_waiting": stats.num_waiting,
            "num_kv_blocks": stats.num_blocks,
            "num_free_kv_blocks": stats.num_free_blocks,
            "stats": stats,
        }
    )


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(context_of(request).metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})


def versions() -> dict[str, Any]:
    """Of the interpreter and of what was installed, read from metadata without importing anything."""
    return {"python": platform.python_version()} | {name: version(name) for name in _DISTRIBUTIONS}


def _checkpoint(context: ServerContext) -> dict[str, Any]:
    checkpoint = context.document.checkpoint
    return {
        "path": checkpoint.path,
        "format": checkpoint.format,
        "iteration": checkpoint.iteration,
        "digest": context.checkpoint_digest.value,
    }

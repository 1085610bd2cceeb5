"""What is being served, and how it is doing."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.context import context_of
from server.api.streaming import JsonReply

router = APIRouter()

_DISTRIBUTIONS = ("megaserve", "torch", "megatron-core", "transformers", "tokenizers", "fastapi", "uvicorn")


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


@router.get("/server_info", response_model=None)
async def server_info(request: Request) -> Response:
    """Every argument with its source, the engine's limits and counters, versions."""
    context = context_of(request)
    client = context.client
    readiness = client.readiness()
    return JsonReply(
        {
            "model": context.model_name,
            "status": readiness.status,
            "reason": readiness.reason or None,
            "uptime_seconds": time.time() - context.start_time,
            "num_restarts": client.num_restarts,
            "num_in_flight": client.num_in_flight,
            "engine": client.ready_info,
            "stats": client.stats,
            "versions": versions(),
            "document": context.document,
        }
    )


def versions() -> dict[str, Any]:
    """Of the interpreter and of what was installed, read from metadata without importing anything."""
    return {"python": platform.python_version()} | {name: version(name) for name in _DISTRIBUTIONS}

"""Liveness, readiness, and a probe that goes through the engine."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.context import ServerContext, context_of
from server.api.streaming import JsonReply
from server.errors import MegaserveError
from server.frontend.request_builder import PromptRequest

router = APIRouter()


@router.get("/ping", response_model=None)
@router.get("/health", response_model=None)
async def health() -> Response:
    """Whether this process answers; restarting it helps when this fails."""
    return JsonReply({"status": "alive"})


@router.get("/health/ready", response_model=None)
async def ready(request: Request) -> Response:
    """Whether requests are taken now and, if any wait, the engine gets on with them; 503 with the reason if not."""
    client = context_of(request).client
    readiness = client.readiness()
    body: dict[str, Any] = {"status": "ready" if readiness.is_ready else "unavailable"}
    if request.scope["role"] != "stranger":
        body = {"status": readiness.status, "reason": readiness.reason or None, "num_restarts": client.num_restarts}
    return JsonReply(body, 200 if readiness.is_ready else 503)


@router.get("/health_generate", response_model=None)
async def health_generate(request: Request) -> Response:
    """Whether a token can be generated within --progress-timeout; 503 with the reason if not."""
    context = context_of(request)
    try:
        async with asyncio.timeout(context.config.progress_timeout):
            await _generate_one_token(context)
    except TimeoutError:
        reason = f"no token was generated in {context.config.progress_timeout:g} s (--progress-timeout)"
        return JsonReply({"status": "failed", "reason": reason}, 503)
    except MegaserveError as error:
        return JsonReply({"status": "failed", "reason": str(error)}, 503)
    return JsonReply({"status": "ready"})


async def _generate_one_token(context: ServerContext) -> None:
    prompt = PromptRequest(
        token_ids=[0],
        prompt_field="token_ids",
        sampling={"temperature": 0.0},
        field_of=str,
        default_max_new_tokens=1,
        priority=-(2**31),  # ahead of all that waits: a long queue is no failure
    )
    generation = context.start([prompt], streaming=False)
    try:
        await generation.finished()
    finally:
        generation.close()

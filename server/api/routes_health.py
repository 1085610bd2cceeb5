"""Liveness and readiness."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.context import context_of
from server.api.streaming import JsonReply

router = APIRouter()


@router.get("/health", response_model=None)
async def health() -> Response:
    """Whether this process answers; restarting it helps when this fails."""
    return JsonReply({"status": "alive"})


@router.get("/health/ready", response_model=None)
async def ready(request: Request) -> Response:
    """Whether requests are taken now; 503 with the reason if not."""
    client = context_of(request).client
    readiness = client.readiness()
    body = {"status": readiness.status, "reason": readiness.reason or None, "num_restarts": client.num_restarts}
    return JsonReply(body, 200 if readiness.is_ready else 503)

"""What an administrator can have the engine do; all of it needs a key of --admin-api-key."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.context import context_of
from server.api.openapi_schema import body_schema
from server.api.protocol import RequestBody
from server.api.request_body import parse_body, read_body
from server.api.streaming import JsonReply
from server.errors import RequestError
from server.frontend.field_checks import Range

router = APIRouter()

_DEFAULT_PROFILED_STEPS = 20
_MOST_PROFILED_STEPS = 1000
"""A trace of more is too large to be opened, and held in memory until it is written."""


class StartProfileBody(RequestBody):
    """POST /start_profile."""

    num_steps: int | None = None


@router.post("/flush_cache", response_model=None)
async def flush_cache(request: Request) -> Response:
    """Forget what later requests could reuse of earlier ones: KV blocks, and image embeddings not in use."""
    await context_of(request).client.control("flush_cache")
    return JsonReply({"flushed": True})


@router.post("/pause", response_model=None)
async def pause(request: Request) -> Response:
    """Run no further step. Requests are still taken and wait, and /health/ready says 503, until /resume."""
    await context_of(request).client.control("pause")
    return JsonReply({"paused": True})


@router.post("/resume", response_model=None)
async def resume(request: Request) -> Response:
    """Go on after /pause."""
    await context_of(request).client.control("resume")
    return JsonReply({"paused": False})


@router.post("/start_profile", openapi_extra=body_schema(StartProfileBody), response_model=None)
async def start_profile(request: Request) -> Response:
    """Record the next num_steps steps on every rank; one Chrome trace per rank goes to --profile-dir."""
    context = context_of(request)
    data = await read_body(request, context.max_body_bytes)
    body = parse_body(data, StartProfileBody) if data else StartProfileBody()
    num_steps = _DEFAULT_PROFILED_STEPS if body.num_steps is None else body.num_steps
    Range(1, _MOST_PROFILED_STEPS).check("num_steps", num_steps)
    if context.config.profile_dir is None:
        raise RequestError("traces go to a directory: start the server with --profile-dir DIR", status=409)
    await context.client.control("start_profile", num_steps)
    return JsonReply({"profiling": True, "num_steps": num_steps, "directory": context.config.profile_dir})


@router.post("/stop_profile", response_model=None)
async def stop_profile(request: Request) -> Response:
    """Write what was recorded until now, before the number of steps was reached."""
    context = context_of(request)
    await context.client.control("stop_profile")
    return JsonReply({"profiling": False, "directory": context.config.profile_dir})

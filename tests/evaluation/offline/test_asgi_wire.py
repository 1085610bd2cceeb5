"""Requests to an application in this process: bodies, headers, failures, and a client that does not go away."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from evaluation.errors import PreflightError
from evaluation.offline.asgi_wire import AsgiWire


async def echo(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"length": len(body), "id": request.headers["x-request-id"]}, headers={"retry-after": "7"})


async def broken(request: Request) -> Response:
    raise ValueError("nobody foresaw this")


async def watchful(request: Request) -> Response:
    await request.body()
    await asyncio.sleep(0.05)
    return JSONResponse({"gone": await request.is_disconnected()})


@pytest.fixture
def wire():
    routes = [Route(f"/{name.__name__}", name, methods=["GET", "POST"]) for name in (echo, broken, watchful)]
    return AsgiWire(Starlette(routes=routes), "the application")


async def test_body_and_headers(wire):
    reply = await wire.post("/echo", b"x" * 100_000, "some-id")
    assert (reply.status, reply.body) == (200, b'{"length":100000,"id":"some-id"}')
    assert reply.headers.get("Retry-After") == "7"


async def test_what_the_application_did_not_foresee_is_a_500(wire):
    assert (await wire.post("/broken", b"{}", "i")).status == 500
    assert (await wire.post("/nowhere", b"{}", "i")).status == 404
    with pytest.raises(PreflightError, match="/nowhere answers 404"):
        await wire.get_json("/nowhere")


async def test_the_client_stays(wire):
    assert await wire.get_json("/watchful") == {"gone": False}

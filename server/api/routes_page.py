"""GET /: the page for people, one self-contained document put together from its parts."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

router = APIRouter()

_SCRIPTS = ("requests.js", "stream.js", "tokens.js", "prompt.js", "engine.js", "arguments.js", "start.js")


class Page(NamedTuple):
    """policy: what the browser lets it do, which is to run its own script and to talk to this server."""

    html: bytes
    policy: str


@cache
def page() -> Page:
    """The document, with style and scripts inside."""
    parts = files("server.api").joinpath("page")
    style = parts.joinpath("style.css").read_text("utf-8")
    script = "\n".join(parts.joinpath(name).read_text("utf-8") for name in _SCRIPTS)
    html = parts.joinpath("index.html").read_text("utf-8").replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode(), policy)


@router.get("/", include_in_schema=False, response_model=None)
async def index(request: Request) -> Response:
    """The page; to somebody without a key with status 401, for it asks for the key and knows nothing without one."""
    html, policy = page()
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "cache-control": "no-cache"}
    status = 401 if request.scope["role"] == "stranger" else 200
    return Response(html, status, headers, media_type="text/html")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"

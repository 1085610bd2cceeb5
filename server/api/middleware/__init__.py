"""What every request passes before it reaches a route, outermost first: id and log line, CORS, keys."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from server.api.metrics import ServerMetrics
from server.api.middleware.api_keys import ApiKeys, RequireKeys
from server.api.middleware.request_log import RequestLog
from server.config import ServerConfig


def wrap(app: ASGIApp, config: ServerConfig, metrics: ServerMetrics) -> ASGIApp:
    """`app` behind all of it. Raises ConfigurationError for a file of keys that cannot be used."""
    app = RequireKeys(app, ApiKeys.from_config(config))
    if config.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=config.allowed_origins,
            allow_methods=["GET", "POST", "PUT"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["x-request-id", "retry-after", "warnings"],
        )
    return RequestLog(app, metrics)

"""The HTTP application: routes and error handlers around one context."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

from server.api import (
    routes_admin,
    routes_chat,
    routes_completions,
    routes_generate,
    routes_health,
    routes_info,
    routes_legacy,
    routes_page,
    routes_tokenizer,
)
from server.api.context import ServerContext
from server.api.dialect_tgi import TgiBody
from server.api.error_replies import install_error_handlers
from server.api.middleware import wrap
from server.api.openai_protocol import ChatBody, CompletionBody
from server.api.openapi_schema import add_components
from server.api.protocol import AbortBody, GenerateBody

_ROUTES = (
    routes_generate,
    routes_completions,
    routes_chat,
    routes_tokenizer,
    routes_legacy,
    routes_health,
    routes_info,
    routes_admin,
    routes_page,
)


def create_app(context: ServerContext) -> ASGIApp:
    """The application that answers for `context`. It answers, with 503 where it must, from before the model loads.

    Raises ConfigurationError for keys that cannot be used.
    """
    app = FastAPI(title="megaserve", docs_url="/docs", redoc_url=None)
    app.state.context = context
    for module in _ROUTES:
        app.include_router(module.router)
    add_components(app, [GenerateBody, TgiBody, AbortBody, CompletionBody, ChatBody, routes_tokenizer.TokenizeBody])
    install_error_handlers(app)
    return wrap(app, context.config, context.metrics)

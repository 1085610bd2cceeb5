"""The HTTP application: routes and error handlers around one context."""

from __future__ import annotations

from fastapi import FastAPI

from server.api import routes_chat, routes_completions, routes_generate, routes_health, routes_info
from server.api.context import ServerContext
from server.api.error_replies import install_error_handlers
from server.api.openai_protocol import ChatBody, CompletionBody
from server.api.openapi_schema import add_components
from server.api.protocol import AbortBody, GenerateBody


def create_app(context: ServerContext) -> FastAPI:
    """The application that answers for `context`. It answers, with 503 where it must, from before the model loads."""
    app = FastAPI(title="megaserve", docs_url="/docs", redoc_url=None)
    app.state.context = context
    for module in (routes_generate, routes_completions, routes_chat, routes_health, routes_info):
        app.include_router(module.router)
    add_components(app, [GenerateBody, AbortBody, CompletionBody, ChatBody])
    install_error_handlers(app)
    return app

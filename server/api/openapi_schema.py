"""Request schemas for /docs: the routes read their bodies themselves, so FastAPI has to be told."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from server.api.protocol import RequestBody

_REFERENCES = "#/components/schemas/{model}"


def body_schema(model: type[RequestBody]) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is `model`."""
    schema = model.model_json_schema(ref_template=_REFERENCES)
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def add_components(app: FastAPI, models: list[type[RequestBody]]) -> None:
    """Put what the bodies refer to into the description of the whole interface."""
    build = app.openapi

    def with_components() -> dict[str, Any]:
        description = build()
        components = description.setdefault("components", {}).setdefault("schemas", {})
        for model in models:
            components.update(model.model_json_schema(ref_template=_REFERENCES).get("$defs", {}))
        return description

    app.openapi = with_components  # type: ignore[method-assign]  # the way FastAPI documents

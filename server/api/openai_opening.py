"""The first lines of every generating route under /v1: a body read, checked, and meant for this server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from starlette.requests import Request

from server.api.context import ServerContext, context_of
from server.api.openai_protocol import BOOKKEEPING_FIELDS, NEUTRAL_VALUES, OpenAISampling
from server.api.protocol import RequestBody
from server.api.request_body import check_body_leniently, decode_object, read_body, refuse_fields
from server.errors import RequestError
from server.frontend.field_checks import shown

_MAX_NAMES = 20
_MAX_NAME_LENGTH = 100


class Opening[Body: RequestBody](NamedTuple):
    """What a route begins with. headers: for the reply; `warnings` among them lists what was ignored."""

    context: ServerContext
    body: Body
    headers: Mapping[str, str]


async def open_request[Body: OpenAISampling](
    request: Request, model: type[Body], unsupported: Iterable[str]
) -> Opening[Body]:
    """Read and check a body. unsupported: known fields to refuse. Raises RequestError, EngineUnavailableError."""
    context = context_of(request)
    fields = decode_object(await read_body(request, context.max_body_bytes))
    refuse_fields(fields, unsupported, NEUTRAL_VALUES)
    for name in BOOKKEEPING_FIELDS:
        fields.pop(name, None)
    body, ignored = check_body_leniently(fields, model)
    check_model(body.model, context.model_name)
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true", field="stream_options")
    context.check_takes_requests()
    return Opening(context, body, warnings_header(ignored))


def check_model(model: str | None, served: str) -> None:
    """Raises RequestError (404) when the client asks for another model than the one that would answer."""
    if model is not None and model != served:
        raise RequestError(
            f"model {shown(model)} does not exist here; this server has {served!r}", field="model", status=404
        )


def warnings_header(ignored: Sequence[str]) -> Mapping[str, str]:
    """A header that names ignored fields, in printable ASCII and of bounded length; none without any."""
    if not ignored:
        return {}
    names = [ascii(path)[1:-1][:_MAX_NAME_LENGTH] for path in ignored[:_MAX_NAMES]]
    more = f" and {len(ignored) - _MAX_NAMES} more" if len(ignored) > _MAX_NAMES else ""
    return {"warnings": f"unknown fields were ignored: {', '.join(names)}{more}"}

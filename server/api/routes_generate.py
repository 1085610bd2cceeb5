"""POST and PUT /generate in three dialects, /generate_stream, and /abort_request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, takewhile

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import dialect_tgi, dialect_vllm, generate_request
from server.api.context import context_of
from server.api.generate_request import batch_rid
from server.api.openapi_schema import body_schema
from server.api.protocol import AbortBody, GenerateBody
from server.api.request_body import decode_object, parse_body, read_body
from server.api.streaming import JsonReply
from server.errors import RequestError

router = APIRouter()

_DIALECTS = {
    "text": generate_request.answer,
    "input_ids": generate_request.answer,
    "prompt": dialect_vllm.answer,
    "inputs": dialect_tgi.answer,
}
"""Whose request it is, by the field that holds the prompt."""


@router.put("/generate", include_in_schema=False, response_model=None)
@router.post("/generate", openapi_extra=body_schema(GenerateBody), response_model=None)
async def generate(request: Request) -> Response:
    """Continue one prompt or a batch, in the shape of whoever the field of the prompt belongs to.

    `text` or `input_ids`: SGLang's, the canonical one. `prompt`: vLLM's demo server. `inputs`: TGI's.
    """
    context = context_of(request)
    fields = decode_object(await read_body(request, context.max_body_bytes))
    given = [name for name in _DIALECTS if fields.get(name) is not None]
    if len({_DIALECTS[name] for name in given}) > 1:
        raise RequestError(f"{' and '.join(given)} belong to requests of different shapes; give one of them")
    answer = _DIALECTS[given[0]] if given else generate_request.answer
    return await answer(request, context, fields)


@router.post("/generate_stream", openapi_extra=body_schema(dialect_tgi.TgiBody), response_model=None)
async def generate_stream(request: Request) -> Response:
    """TGI's: as /generate with `inputs`, always a stream."""
    context = context_of(request)
    fields = decode_object(await read_body(request, context.max_body_bytes))
    return await dialect_tgi.answer(request, context, fields, always_stream=True)


@router.post("/abort_request", openapi_extra=body_schema(AbortBody), response_model=None)
async def abort_request(request: Request) -> Response:
    """End a running request, or a batch, by its rid; it is answered with what it has. Unknown rids are ignored."""
    context = context_of(request)
    body = parse_body(await read_body(request, context.max_body_bytes), AbortBody)
    rids = _rids_of(body.rid, context.generations)
    for rid in rids:
        generation, prompt_index = context.generations[rid]
        generation.abort(prompt_index)
    return JsonReply({"rid": body.rid, "aborted": bool(rids)})


def _rids_of(rid: str, running: Mapping[str, object]) -> Sequence[str]:
    """This prompt's, or where there is none of that name, those of a batch's prompts."""
    if rid in running:
        return [rid]
    return list(takewhile(running.__contains__, (batch_rid(rid, index) for index in count())))

"""PUT /api: what clients of Megatron's text generation server send, answered in its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.context import ServerContext, context_of
from server.api.dialect_megatron import LegacyBody, prompt_requests, refuse
from server.api.openapi_schema import body_schema
from server.api.request_body import check_body, decode_object, read_body
from server.api.streaming import respond_whole
from server.frontend.sample import Sample

router = APIRouter()


@router.put("/api", openapi_extra=body_schema(LegacyBody), response_model=None)
async def legacy(request: Request) -> Response:
    """Continue up to 128 prompts."""
    context = context_of(request)
    fields = decode_object(await read_body(request, context.max_body_bytes))
    refuse(fields)
    body = check_body(fields, LegacyBody)
    context.check_takes_requests()
    generation = context.start(await prompt_requests(body, context), streaming=False)
    return await respond_whole(request, generation, lambda samples: _reply(body, samples, context))


def _reply(body: LegacyBody, samples: Sequence[Sample], context: ServerContext) -> dict[str, Any]:
    """One entry per prompt in each list, prompt and generated tokens together; a first token has no log-probability."""
    tokens = [[*sample.request.prompt_token_ids, *sample.token_ids] for sample in samples]
    reply: dict[str, Any] = {
        "text": [prompt + sample.text for prompt, sample in zip(body.prompts, samples, strict=True)],
        "segments": [[context.detokenizers.token_text(token_id) for token_id in ids] for ids in tokens],
        "tokens": tokens,
    }
    if body.logprobs:
        reply["logprobs"] = [
            [entry.logprob for entry in (*sample.prompt_logprobs, *sample.logprobs) if entry is not None]
            for sample in samples
        ]
    return reply

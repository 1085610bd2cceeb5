"""POST /v1/completions: prompts as text or token ids, continued as they are."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.completion_prompts import completion_prompts
from server.api.completion_replies import CompletionReplies
from server.api.openai_opening import open_request
from server.api.openai_protocol import UNSUPPORTED_COMPLETION_FIELDS, CompletionBody
from server.api.openai_request import prompt_logprob_fields, sampling_of
from server.api.openapi_schema import body_schema
from server.api.streaming import respond
from server.frontend.request_builder import PromptRequest

router = APIRouter()


@router.post("/completions", include_in_schema=False, response_model=None)  # Megatron's server has it here
@router.post("/v1/completions", openapi_extra=body_schema(CompletionBody), response_model=None)
async def completions(request: Request) -> Response:
    """Continue one prompt or several."""
    context, body, headers = await open_request(request, CompletionBody, UNSUPPORTED_COMPLETION_FIELDS)
    prompt_logprobs = prompt_logprob_fields(body, body.logprobs, echo=body.echo or False)
    prompts = await completion_prompts(body, context)
    values, field_of = sampling_of(body, body.grammar())
    requests = [
        PromptRequest(
            token_ids=prompt.token_ids,
            prompt_field=prompt.field,
            sampling=values,
            field_of=field_of,
            default_max_new_tokens=context.config.default_max_tokens,
            clamp=context.config.clamp_max_tokens == "all",
            logprobs=body.logprobs,
            logprobs_field="logprobs",
            priority=body.priority or 0,
            **prompt_logprobs,
        )
        for prompt in prompts
    ]
    generation = context.start(requests, streaming=body.stream or False)
    replies = CompletionReplies(body, context, prompts)
    return await respond(request, generation, replies, stream=body.stream or False, headers=headers)

"""/tokenize, /detokenize and /tokenizer_info, as vLLM shapes them and lm-evaluation-harness asks them.

Unlike in a prompt, the spelling of a control token in a text is that token here, because clients render chat templates
and look up BOS and EOS by this; `split_special_tokens` (Hugging Face's word) gives the tokens of the text as a prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from server.api.context import ServerContext, context_of
from server.api.json_unions import TokenIds
from server.api.openai_opening import Opening, check_model, warnings_header
from server.api.openai_protocol import ChatMessage
from server.api.openapi_schema import body_schema
from server.api.protocol import RequestBody
from server.api.request_body import check_body_leniently, decode_object, read_body
from server.api.streaming import JsonReply
from server.errors import RequestError
from server.frontend.chat_options import ChatOptions
from server.frontend.field_checks import check_token_ids

router = APIRouter()


class TokenizeBody(RequestBody):
    """Exactly one of prompt and messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    split_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(RequestBody):
    """tokens: ids."""

    model: str | None = None
    tokens: TokenIds


@router.post("/tokenize", openapi_extra=body_schema(TokenizeBody), response_model=None)
async def tokenize(request: Request) -> Response:
    """Token ids of a text or of a conversation; how many, and how many the model takes."""
    context, body, headers = await _open(request, TokenizeBody)
    token_ids = await _token_ids(body, context)
    ready = context.client.ready_info
    reply: dict[str, Any] = {
        "count": len(token_ids),
        "max_model_len": ready.limits.max_model_len if ready else None,
        "tokens": token_ids,
    }
    if body.return_token_strs:
        reply["token_strs"] = list(context.tokenizer.token_strings(token_ids))
    return JsonReply(reply, headers=headers)


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeBody), response_model=None)
async def detokenize(request: Request) -> Response:
    """The text of token ids, control tokens included."""
    context, body, headers = await _open(request, DetokenizeBody)
    check_token_ids("tokens", body.tokens, context.tokenizer.vocab_size)
    text = await asyncio.to_thread(context.tokenizer.decode, body.tokens)
    return JsonReply({"prompt": text}, headers=headers)


@router.get("/tokenizer_info", response_model=None)
async def tokenizer_info(request: Request) -> Response:
    """Special tokens and the chat template."""
    return JsonReply(context_of(request).tokenizer.description())


async def _open[Body: TokenizeBody | DetokenizeBody](request: Request, model: type[Body]) -> Opening[Body]:
    context = context_of(request)
    fields = decode_object(await read_body(request, context.max_body_bytes))
    body, ignored = check_body_leniently(fields, model)
    check_model(body.model, context.model_name)
    return Opening(context, body, warnings_header(ignored))


async def _token_ids(body: TokenizeBody, context: ServerContext) -> Sequence[int]:
    if (body.prompt is None) == (body.messages is None):
        given = "both" if body.prompt is not None else "neither"
        raise RequestError(f"exactly one of prompt and messages must be given, but {given} was")
    if body.messages is not None:
        if any(message.images(f"messages[{index}]") for index, message in enumerate(body.messages)):
            raise RequestError("messages with images have more than text to tokenise", field="messages")
        options = ChatOptions.of_request(
            body.add_generation_prompt, body.continue_final_message, body.chat_template_kwargs
        )
        return await context.encode_chat([message.for_template(iter(())) for message in body.messages], options)
    assert body.prompt is not None
    add = body.add_special_tokens is not False
    if body.split_special_tokens:
        return await context.encode(body.prompt, add_special_tokens=add)
    return await asyncio.to_thread(context.tokenizer.encode_control, body.prompt, add_special_tokens=add)

"""POST /v1/chat/completions: a conversation through the chat template."""

from __future__ import annotations

from contextlib import ExitStack

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from image_preprocessing.placeholders import image_marks
from server.api.chat_replies import ChatReplies
from server.api.context import ServerContext
from server.api.openai_opening import open_request
from server.api.openai_protocol import UNSUPPORTED_CHAT_FIELDS, ChatBody
from server.api.openai_request import prompt_logprob_fields, sampling_of
from server.api.openapi_schema import body_schema
from server.api.retokenization import keep_earlier_tokens
from server.api.streaming import respond
from server.api.tool_request import AnswerPlan, answer_plan, with_tools
from server.errors import RequestError
from server.frontend.chat_options import ChatOptions
from server.frontend.field_checks import shown
from server.frontend.image_data import image_source
from server.frontend.image_prompt import ImagePrompt
from server.frontend.request_builder import PromptRequest

router = APIRouter()


@router.post("/chat/completions", include_in_schema=False, response_model=None)  # Megatron's server has it here
@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody), response_model=None)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation. Without max_tokens the answer may fill the context; a larger one is cut to that."""
    context, body, headers = await open_request(request, ChatBody, UNSUPPORTED_CHAT_FIELDS)
    with ExitStack() as held:
        encoded = await _encode(body, context, held)
        plan = answer_plan(body, context, encoded.token_ids)
        prompt = _prompt_request(body, context, encoded, plan)
        generation = context.start([prompt], streaming=body.stream or False, held=held)
    replies = ChatReplies(body, context, plan.format)
    return await respond(request, generation, replies, stream=body.stream or False, headers=headers)


async def _encode(body: ChatBody, context: ServerContext, held: ExitStack) -> ImagePrompt:
    if not body.messages:
        raise RequestError("messages must have at least one message", field="messages")
    options = ChatOptions.of_request(body.add_generation_prompt, body.continue_final_message, body.chat_template_kwargs)
    options = with_tools(options, body, context)
    urls: list[str] = []
    for index, message in enumerate(body.messages):
        urls += message.images(f"messages[{index}]")
    if not urls:
        return ImagePrompt(await _text_tokens(body, options, context), ())
    if body.add_BOS is not None:
        raise RequestError("add_BOS together with images is not supported by this server", field="add_BOS")
    context.check_takes_images("messages")
    sources = [image_source(url, "messages") for url in urls]
    marks = image_marks(len(urls))
    marked = iter(marks)
    messages = [message.for_template(marked) for message in body.messages]
    return await context.encode_chat_with_images(messages, options, marks, sources, held)


async def _text_tokens(body: ChatBody, options: ChatOptions, context: ServerContext) -> list[int]:
    assert body.messages is not None
    messages = [message.for_template(iter(())) for message in body.messages]
    token_ids = await context.encode_chat(messages, options)
    if body.prevent_retokenization is not False:
        token_ids = await keep_earlier_tokens(body.messages, token_ids, options, context)
    if body.add_BOS is not None:
        token_ids = context.tokenizer.with_bos(token_ids, wanted=body.add_BOS)
    return token_ids


def _prompt_request(body: ChatBody, context: ServerContext, prompt: ImagePrompt, plan: AnswerPlan) -> PromptRequest:
    values, field_of = sampling_of(body, plan.grammar)
    num_logprobs = _num_logprobs(body)
    return PromptRequest(
        token_ids=prompt.token_ids,
        images=prompt.images,
        prompt_field="messages",
        sampling=values,
        field_of=field_of,
        default_max_new_tokens=None,
        clamp=context.config.clamp_max_tokens != "none",
        logprobs=num_logprobs,
        logprobs_field="top_logprobs",
        priority=body.priority or 0,
        shown_tokens=frozenset(context.tokenizer.added_ids_of(plan.format.tags).values()),
        **prompt_logprob_fields(body, num_logprobs, echo=False),
    )


def _num_logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RequestError(
            f"top_logprobs is {shown(body.top_logprobs)}, which needs logprobs to be true", field="top_logprobs"
        )
    return None

"""POST /v1/chat/completions: a conversation through the chat template."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from image_preprocessing.placeholders import image_marks
from server.api.context import ServerContext, context_of
from server.api.openai_protocol import BOOKKEEPING_FIELDS, UNSUPPORTED_CHAT_FIELDS, ChatBody, ChatMessage
from server.api.openai_request import (
    check_model,
    check_stream_options,
    finish_fields,
    sampling_of,
    usage_of,
    wants_usage_event,
)
from server.api.openapi_schema import body_schema
from server.api.request_body import parse_body, read_body
from server.api.streaming import EventStream, JsonReply, finished, gone
from server.api.token_logprobs import chat_logprobs
from server.errors import RequestError
from server.frontend.field_checks import shown
from server.frontend.image_data import image_bytes
from server.frontend.image_prompt import ImagePrompt
from server.frontend.request_builder import PromptRequest
from server.frontend.sample import Sample
from server.request import EngineImage

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody), response_model=None)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation. Without max_tokens the answer may fill the context; a larger one is cut to that."""
    context = context_of(request)
    body = parse_body(
        await read_body(request, context.max_body_bytes),
        ChatBody,
        unsupported=UNSUPPORTED_CHAT_FIELDS,
        ignored=BOOKKEEPING_FIELDS,
    )
    check_model(body, context.model_name)
    check_stream_options(body)
    num_logprobs = _num_logprobs(body)
    if not body.messages:
        raise RequestError("messages must have at least one message", field="messages")
    context.check_takes_requests()
    with ExitStack() as held:
        token_ids, images = await _encode(body.messages, context, held)
        prompt = _prompt_request(body, token_ids, images, num_logprobs)
        generation = context.start([prompt], streaming=body.stream or False, held=held)
    replies = ChatReplies(body, context)
    if body.stream:
        return EventStream(generation, replies)
    samples = await finished(request, generation)
    return gone() if samples is None else JsonReply(replies.body(samples))


async def _encode(messages: Sequence[ChatMessage], context: ServerContext, held: ExitStack) -> ImagePrompt:
    urls: list[str] = []
    for index, message in enumerate(messages):
        urls += message.images(f"messages[{index}]")
    if not urls:
        return ImagePrompt(await context.encode_chat([message.for_template(iter(())) for message in messages]), ())
    context.check_takes_images("messages")
    sources = [image_bytes(url, "messages") for url in urls]
    marks = image_marks(len(urls))
    marked = iter(marks)
    return await context.encode_chat_with_images([m.for_template(marked) for m in messages], marks, sources, held)


def _prompt_request(
    body: ChatBody, token_ids: list[int], images: tuple[EngineImage, ...], num_logprobs: int | None
) -> PromptRequest:
    values, field_of = sampling_of(body)
    return PromptRequest(
        token_ids=token_ids,
        images=images,
        prompt_field="messages",
        sampling=values,
        field_of=field_of,
        default_max_new_tokens=None,
        clamp=True,
        logprobs=num_logprobs,
        logprobs_field="top_logprobs",
        priority=body.priority or 0,
    )


class ChatReplies:
    """Makes replies for one request."""

    is_openai = True

    def __init__(self, body: ChatBody, context: ServerContext) -> None:
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._body = body
        self._context = context
        self._samples: dict[int, Sample] = {}
        self._num_sent: dict[int, tuple[int, int]] = {}  # characters and tokens, by the sample's index

    def body(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The whole reply of a request without `stream`."""
        choices = [
            {
                "index": sample.place.sample_index,
                "message": {"role": "assistant", "content": sample.text},
                "logprobs": self._logprobs(sample, 0),
                **finish_fields(sample),
            }
            for sample in samples
        ]
        return self._envelope("chat.completion", choices) | {"usage": usage_of(samples)}

    def first(self) -> Iterable[Any]:
        """The role of each choice, before its text."""
        for index in range(self._body.n or 1):
            yield self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        """Deltas: each event holds the text since the one before."""
        for sample in changed:
            index = sample.place.sample_index
            self._samples[index] = sample
            num_characters, num_tokens = self._num_sent.get(index, (0, 0))
            text = sample.text[num_characters:]
            if not text and not sample.is_done:
                continue
            self._num_sent[index] = (len(sample.text), len(sample.logprobs))
            yield self._chunk(index, {"content": text} if text else {}, self._logprobs(sample, num_tokens), sample)

    def last(self) -> Iterable[Any]:
        if wants_usage_event(self._body):
            yield self._envelope("chat.completion.chunk", []) | {"usage": usage_of(list(self._samples.values()))}

    def _chunk(self, index: int, delta: dict[str, str], logprobs: Any, sample: Sample | None) -> dict[str, Any]:
        finish = finish_fields(sample) if sample else {"finish_reason": None, "stop_reason": None}
        choice = {"index": index, "delta": delta, "logprobs": logprobs, **finish}
        return self._envelope("chat.completion.chunk", [choice])

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._context.model_name,
            "choices": choices,
        }

    def _logprobs(self, sample: Sample, start: int) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(sample.logprobs[start:], self._context.detokenizers)


def _num_logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RequestError(
            f"top_logprobs is {shown(body.top_logprobs)}, which needs logprobs to be true", field="top_logprobs"
        )
    return None

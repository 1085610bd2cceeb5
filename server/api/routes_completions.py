"""POST /v1/completions: prompts as text or token ids, continued as they are."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api.context import ServerContext, context_of
from server.api.openai_protocol import BOOKKEEPING_FIELDS, UNSUPPORTED_COMPLETION_FIELDS, CompletionBody
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
from server.api.token_logprobs import completion_logprobs
from server.errors import RequestError
from server.frontend.request_builder import PromptRequest
from server.frontend.sample import Sample

router = APIRouter()


@router.post("/v1/completions", openapi_extra=body_schema(CompletionBody), response_model=None)
async def completions(request: Request) -> Response:
    """Continue one prompt or several."""
    context = context_of(request)
    body = parse_body(
        await read_body(request, context.max_body_bytes),
        CompletionBody,
        unsupported=UNSUPPORTED_COMPLETION_FIELDS,
        ignored=BOOKKEEPING_FIELDS,
    )
    check_model(body, context.model_name)
    check_stream_options(body)
    if body.echo and body.stream:
        raise RequestError("echo together with stream is not supported by this server", field="echo")
    context.check_takes_requests()
    prompts = await _prompts(body, context)
    values, field_of = sampling_of(body)
    requests = [
        PromptRequest(
            token_ids=token_ids,
            prompt_field=field,
            sampling=values,
            field_of=field_of,
            default_max_new_tokens=context.config.default_max_tokens,
            logprobs=body.logprobs,
            logprobs_field="logprobs",
            prompt_logprobs_start=0 if body.echo and body.logprobs is not None else None,
            priority=body.priority or 0,
        )
        for token_ids, field, _ in prompts
    ]
    generation = context.start(requests, streaming=body.stream or False)
    replies = CompletionReplies(body, context, [text for _, _, text in prompts])
    if body.stream:
        return EventStream(generation, replies)
    samples = await finished(request, generation)
    return gone() if samples is None else JsonReply(replies.body(samples))


class CompletionReplies:
    """Makes replies for one request. prompt_texts: what `echo` repeats."""

    is_openai = True

    def __init__(self, body: CompletionBody, context: ServerContext, prompt_texts: Sequence[str]) -> None:
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._body = body
        self._context = context
        self._prompt_texts = prompt_texts
        self._samples: dict[int, Sample] = {}
        self._num_sent: dict[int, tuple[int, int]] = {}  # characters and tokens, by the sample's index

    def body(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The whole reply of a request without `stream`."""
        return self._envelope([self._choice(sample) for sample in samples]) | {"usage": usage_of(samples)}

    def first(self) -> Iterable[Any]:
        return ()

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
            choice = {"index": index, "text": text, "logprobs": None, **finish_fields(sample)}
            if self._body.logprobs is not None:
                positions = [(entry.token_id, entry) for entry in sample.logprobs[num_tokens:]]
                choice["logprobs"] = completion_logprobs(positions, self._context.detokenizers, num_characters)
            yield self._envelope([choice])

    def last(self) -> Iterable[Any]:
        if wants_usage_event(self._body):
            yield self._envelope([]) | {"usage": usage_of(list(self._samples.values()))}

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._context.model_name,
            "choices": choices,
        }

    def _choice(self, sample: Sample) -> dict[str, Any]:
        echoed = self._prompt_texts[sample.place.prompt_index] if self._body.echo else ""
        return {
            "index": sample.place.sample_index,
            "text": echoed + sample.text,
            "logprobs": None if self._body.logprobs is None else self._logprobs(sample),
            **finish_fields(sample),
        }

    def _logprobs(self, sample: Sample) -> dict[str, Any]:
        positions = [(entry.token_id, entry) for entry in sample.logprobs]
        if self._body.echo:
            prompt = zip(sample.request.prompt_token_ids, sample.prompt_logprobs, strict=False)
            return completion_logprobs([*prompt, *positions], self._context.detokenizers)
        return completion_logprobs(positions, self._context.detokenizers)


async def _prompts(body: CompletionBody, context: ServerContext) -> list[tuple[list[int], str, str]]:
    """Token ids, JSON path and text (for echo) of each prompt."""
    prompt = body.prompt
    if prompt is None:
        raise RequestError("prompt is missing", field="prompt")
    if isinstance(prompt, str):
        return [(await context.encode(prompt), "prompt", prompt)]
    if not prompt or isinstance(prompt[0], int):
        return [_ids_prompt(prompt, "prompt", body, context)]
    context.check_num_prompts("prompt", len(prompt))
    return [
        (await context.encode(one), f"prompt[{i}]", one)
        if isinstance(one, str)
        else _ids_prompt(one, f"prompt[{i}]", body, context)
        for i, one in enumerate(prompt)
    ]


def _ids_prompt(token_ids: Any, field: str, body: CompletionBody, context: ServerContext) -> tuple[list[int], str, str]:
    if not body.echo:
        return token_ids, field, ""
    in_vocabulary = all(0 <= token_id < context.client.limits.vocab_size for token_id in token_ids)
    return token_ids, field, context.tokenizer.decode(token_ids) if in_vocabulary else ""

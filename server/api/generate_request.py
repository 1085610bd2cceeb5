"""From a canonical /generate body to prompts for the engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.context import ServerContext
from server.api.generate_replies import GenerateReplies, LogprobOptions
from server.api.protocol import GenerateBody, SamplingBody
from server.api.request_body import check_body
from server.api.response_format import sampling_grammar
from server.api.streaming import respond
from server.errors import RequestError
from server.frontend.field_checks import Range, shown
from server.frontend.image_data import images_of_prompts
from server.frontend.image_prompt import ImagePrompt
from server.frontend.request_builder import PromptRequest


async def answer(request: Request, context: ServerContext, fields: dict[str, Any]) -> Response:
    """Continue one prompt or a batch. Raises RequestError, EngineUnavailableError."""
    body = check_body(fields, GenerateBody)
    streaming = body.stream or False
    if body.stream_mode is not None and not streaming:
        raise RequestError("stream_mode needs stream to be true", field="stream_mode")
    context.check_takes_requests()
    with ExitStack() as held:
        prompts, is_batch = await _prompts(body, context, held)
        samplings = _samplings(body, len(prompts))
        requests = [
            _prompt_request(body, prompt, field, sampling, context)
            for (prompt, field), sampling in zip(prompts, samplings, strict=True)
        ]
        ids = _ids(body, len(prompts), is_batch)
        generation = context.start(requests, streaming=streaming, rids=ids, held=held)
    logprobs = LogprobOptions(
        body.return_logprob or False, body.top_logprobs_num or 0, body.return_text_in_logprobs or False
    )
    is_single = len(generation.samples) == 1 and not is_batch
    replies = GenerateReplies(ids, is_single, logprobs, context, in_deltas=body.stream_mode == "delta")
    return await respond(request, generation, replies, stream=streaming)


async def _prompts(
    body: GenerateBody, context: ServerContext, held: ExitStack
) -> tuple[list[tuple[ImagePrompt, str]], bool]:
    """Each prompt with its JSON path, and whether the client sent a list of prompts."""
    if (body.text is None) == (body.input_ids is None):
        given = "both" if body.text is not None else "neither"
        raise RequestError(f"exactly one of text and input_ids must be given, but {given} was")
    if body.text is None:
        return _token_prompts(body, context)
    texts = [body.text] if isinstance(body.text, str) else body.text
    is_batch = not isinstance(body.text, str)
    if is_batch:
        context.check_num_prompts("text", len(texts))
    if body.image_data not in (None, []):
        context.check_takes_images("image_data")
    images = images_of_prompts(body.image_data, len(texts), is_batch)
    prompts = []
    for i, (text, sources) in enumerate(zip(texts, images, strict=True)):
        field = f"text[{i}]" if is_batch else "text"
        if sources:
            prompts.append((await context.encode_with_images(text, sources, held, "image_data"), field))
        else:
            prompts.append((ImagePrompt(await context.encode(text), ()), field))
    return prompts, is_batch


def _token_prompts(body: GenerateBody, context: ServerContext) -> tuple[list[tuple[ImagePrompt, str]], bool]:
    if body.image_data not in (None, []):
        raise RequestError("image_data needs text: token ids cannot say where an image goes", field="image_data")
    assert body.input_ids is not None
    nested = [ids for ids in body.input_ids if isinstance(ids, list)]
    if not nested:
        flat = [token_id for token_id in body.input_ids if isinstance(token_id, int)]
        return [(ImagePrompt(flat, ()), "input_ids")], False
    context.check_num_prompts("input_ids", len(nested))
    return [(ImagePrompt(ids, ()), f"input_ids[{i}]") for i, ids in enumerate(nested)], True


def _samplings(body: GenerateBody, num_prompts: int) -> list[tuple[Mapping[str, Any], Callable[[str], str]]]:
    """For each prompt its parameters, and where in the body each of them stands."""
    given = body.sampling_params or SamplingBody()
    if not isinstance(given, list):
        return [_sampling(given, "sampling_params")] * num_prompts
    if len(given) != num_prompts:
        raise RequestError(
            f"sampling_params has {len(given)} entries for {num_prompts} prompts; give one for each, or one object",
            field="sampling_params",
        )
    return [_sampling(params, f"sampling_params[{i}]") for i, params in enumerate(given)]


def _sampling(params: SamplingBody, path: str) -> tuple[Mapping[str, Any], Callable[[str], str]]:
    grammar = sampling_grammar(params, path)
    values = params.model_dump(exclude_none=True, exclude={"json_schema", "regex", "grammar"})
    values |= {"grammar": grammar} if grammar else {}
    alias = values.pop("max_tokens", None)
    if alias is not None and values.setdefault("max_new_tokens", alias) != alias:
        raise RequestError(
            f"{path}.max_new_tokens is {shown(values['max_new_tokens'])} and {path}.max_tokens, another name for it, "
            f"is {shown(alias)}; give one of them",
            field=f"{path}.max_tokens",
        )
    names = {} if alias is None or params.max_new_tokens is not None else {"max_new_tokens": "max_tokens"}
    return values, lambda name: f"{path}.{names.get(name, name)}"


def _prompt_request(
    body: GenerateBody,
    prompt: ImagePrompt,
    field: str,
    sampling: tuple[Mapping[str, Any], Callable[[str], str]],
    context: ServerContext,
) -> PromptRequest:
    values, field_of = sampling
    token_ids, images = prompt
    start = -1 if body.logprob_start_len is None else body.logprob_start_len
    Range(-1, max(len(token_ids) - 1, 0)).check("logprob_start_len", start)
    return PromptRequest(
        token_ids=token_ids,
        images=images,
        prompt_field=field,
        sampling=values,
        field_of=field_of,
        default_max_new_tokens=context.config.default_max_tokens,
        logprobs=_num_logprobs(body),
        prompt_logprobs_start=start if body.return_logprob and start >= 0 else None,
        priority=body.priority or 0,
    )


def _num_logprobs(body: GenerateBody) -> int | None:
    if body.return_logprob:
        return body.top_logprobs_num or 0
    # Clients send the values that ask for nothing unasked.
    for field, value, neutral in (
        ("top_logprobs_num", body.top_logprobs_num, 0),
        ("logprob_start_len", body.logprob_start_len, -1),
        ("return_text_in_logprobs", body.return_text_in_logprobs, False),
    ):
        if value not in (None, neutral):
            raise RequestError(f"{field} is {shown(value)}, which needs return_logprob to be true", field=field)
    return None


def _ids(body: GenerateBody, num_prompts: int, is_batch: bool) -> Sequence[str]:
    """Each prompt's id: the client's rid, numbered in a batch, or a fresh one."""
    if isinstance(body.rid, list):
        if not is_batch or len(body.rid) != num_prompts:
            raise RequestError(f"rid has {len(body.rid)} entries for {num_prompts} prompts", field="rid")
        return body.rid
    rid = body.rid or uuid.uuid4().hex
    return [batch_rid(rid, index) for index in range(num_prompts)] if is_batch else [rid]


def batch_rid(rid: str, index: int) -> str:
    """The name of one prompt of a batch that was given one name."""
    return f"{rid}_{index}"

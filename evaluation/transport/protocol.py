"""Request bodies and replies of the two endpoints that generate, as pure functions.

`/v1/chat/completions` is OpenAI's shape; `/generate` is SGLang's: `{text, image_data, sampling_params, rid}` to
`{text, output_ids, meta_info}`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from evaluation.canonical import well_formed
from evaluation.datasets import Content
from evaluation.keys import GenerationParameters
from evaluation.prompts import RenderedPrompt
from evaluation.status import Status
from evaluation.transport.outcome import Completion, Failure, Reply
from evaluation.transport.request import HttpRequest, data_url

CHAT_PATH = "/v1/chat/completions"
GENERATE_PATH = "/generate"


def generation_request(prompt: RenderedPrompt, parameters: GenerationParameters, model: str) -> HttpRequest:
    """The request for an answer, on the endpoint that the prompt asks for."""
    num_image_bytes = sum(image.num_bytes for image in prompt.all_images)
    if prompt.endpoint == "generate":
        return HttpRequest(
            path=GENERATE_PATH,
            make_body=lambda request_id: generate_body(prompt, parameters, request_id),
            parse=parse_generate,
            num_image_bytes=num_image_bytes,
        )
    return HttpRequest(
        path=CHAT_PATH,
        make_body=lambda _: chat_body(prompt, parameters, model),
        parse=parse_chat,
        num_image_bytes=num_image_bytes,
    )


def chat_body(prompt: RenderedPrompt, parameters: GenerationParameters, model: str) -> dict[str, Any]:
    """Body of a chat request: OpenAI's messages, images as `data:` URLs in parts."""
    return {
        "model": model,
        "messages": [{"role": m.role, "content": _chat_content(m.content)} for m in prompt.messages],
        "max_tokens": parameters.max_new_tokens,
        **_shared(parameters),
    }


def generate_body(prompt: RenderedPrompt, parameters: GenerationParameters, request_id: str) -> dict[str, Any]:
    """Body of a raw completion request."""
    sampling = {"max_new_tokens": parameters.max_new_tokens, **_shared(parameters)}
    body = {"text": prompt.text, "sampling_params": sampling, "rid": request_id}
    return {**body, "image_data": [data_url(image) for image in prompt.images]} if prompt.images else body


def _shared(parameters: GenerationParameters) -> dict[str, Any]:
    """Sampling parameters that have one name on both endpoints; those that are not set are left to the server."""
    values: dict[str, Any] = {"temperature": parameters.temperature, "top_p": parameters.top_p}
    if parameters.seed is not None:
        values["seed"] = parameters.seed
    if parameters.stop:
        values["stop"] = list(parameters.stop)
    return values


def _chat_content(content: Content) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in content
    ]


def parse_chat(body: Any) -> Reply:
    """Reply of `/v1/chat/completions`."""
    try:
        choice = body["choices"][0]
        content = choice["message"]["content"]
        reasoning = choice["message"].get("reasoning_content")
        reason = choice["finish_reason"]
        usage = body.get("usage") or {}
        tokens = (count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens")))
        told = _Told(*tokens, fingerprint=_text_or_none(body.get("system_fingerprint")))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        return malformed(f"no chat completion in the reply ({type(error).__name__}: {error})")
    return _reply(content, reasoning, reason, told)


def parse_generate(body: Any) -> Reply:
    """Reply of `/generate`."""
    try:
        meta = body["meta_info"]
        reason = meta["finish_reason"]["type"]
        tokens = (count_of(meta.get("prompt_tokens")), count_of(meta.get("completion_tokens")))
        content = body["text"]
        told = _Told(*tokens, times=_times(meta))
    except (KeyError, TypeError, AttributeError) as error:
        return malformed(f"no completion in the reply ({type(error).__name__}: {error})")
    return _reply(content, None, reason, told)


class _Told(NamedTuple):
    """What a reply says about itself beside its text."""

    prompt_tokens: int
    completion_tokens: int
    times: dict[str, float] | None = None
    fingerprint: str | None = None


def _times(meta: Any) -> dict[str, float] | None:
    """Seconds by /generate's names for them."""
    names = {"queue": "queue_time", "first_token": "ttft", "total": "e2e_latency"}
    times = {name: float(meta[key]) for name, key in names.items() if isinstance(meta.get(key), int | float)}
    return times or None


def _text_or_none(value: Any) -> str | None:
    return well_formed(value) if isinstance(value, str) else None


def _reply(content: Any, reasoning: Any, reason: Any, told: _Told) -> Reply:
    if reason == "content_filter":
        return Failure(status=Status.CONTENT_FILTER, message="withheld by the server's content filter")
    if reason == "abort":
        return Failure(status=Status.CANCELLED, message="the request was aborted on the server")
    if reason == "error":
        return Failure(status=Status.SERVER_5XX, message=f"the server gave the request up (finish reason {reason!r})")
    if reason not in ("stop", "length"):
        return malformed(f"unknown finish reason {reason!r}")
    for name, value in (("content", content), ("reasoning", reasoning)):
        if value is not None and not isinstance(value, str):
            return malformed(f"the {name} of the reply is no text but {type(value).__name__}")
    if content is None and reason == "stop":
        return malformed("the content of the reply is null")
    text = well_formed(content or "")
    return Completion(
        status=answer_status(text, reason),
        text=text,
        reasoning=None if reasoning is None else well_formed(reasoning),
        finish_reason=reason,
        **told._asdict(),
    )


def answer_status(answer: str, finish_reason: str | None) -> Status:
    """Status of a reply that has this answer, thinking left out."""
    if answer.strip():
        return Status.OK_TRUNCATED if finish_reason == "length" else Status.OK
    return Status.NO_ANSWER_LENGTH if finish_reason == "length" else Status.EMPTY


def count_of(value: Any) -> int:
    """A number of tokens, 0 when the server does not say; TypeError for anything else."""
    if value is None:
        return 0
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number of tokens")
    return value


def malformed(message: str) -> Failure:
    """The failure of a reply that makes no sense."""
    return Failure(status=Status.MALFORMED_RESPONSE, message=message[:500], http_status=200)

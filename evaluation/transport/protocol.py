"""Request bodies and replies of the two endpoints, as pure functions.

`/v1/chat/completions` is OpenAI's shape; `/generate` is SGLang's: `{text, sampling_params, rid}` to
`{text, output_ids, meta_info}`.
"""

from __future__ import annotations

from typing import Any

from evaluation.canonical import well_formed
from evaluation.keys import GenerationParameters
from evaluation.prompts import RenderedPrompt
from evaluation.status import Status
from evaluation.transport.outcome import Completion, Failure, Reply

CHAT_PATH = "/v1/chat/completions"
GENERATE_PATH = "/generate"


def chat_body(prompt: RenderedPrompt, parameters: GenerationParameters, model: str) -> dict[str, Any]:
    """Body of a chat request."""
    body: dict[str, Any] = {
        "model": model,
        "messages": prompt.chat_messages(),
        "max_tokens": parameters.max_new_tokens,
        "temperature": parameters.temperature,
        "top_p": parameters.top_p,
    }
    return body if parameters.seed is None else {**body, "seed": parameters.seed}


def generate_body(prompt: RenderedPrompt, parameters: GenerationParameters, request_id: str) -> dict[str, Any]:
    """Body of a raw completion request."""
    sampling: dict[str, Any] = {
        "max_new_tokens": parameters.max_new_tokens,
        "temperature": parameters.temperature,
        "top_p": parameters.top_p,
    }
    if parameters.seed is not None:
        sampling["seed"] = parameters.seed
    return {"text": prompt.text, "sampling_params": sampling, "rid": request_id}


def parse_chat(body: Any) -> Reply:
    """Reply of `/v1/chat/completions`."""
    try:
        choice = body["choices"][0]
        content = choice["message"]["content"]
        reason = choice["finish_reason"]
        usage = body.get("usage") or {}
        tokens = (_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        return _malformed(f"no chat completion in the reply ({type(error).__name__}: {error})")
    return _reply(content, reason, *tokens)


def parse_generate(body: Any) -> Reply:
    """Reply of `/generate`."""
    try:
        meta = body["meta_info"]
        reason = meta["finish_reason"]["type"]
        tokens = (_count(meta.get("prompt_tokens")), _count(meta.get("completion_tokens")))
        content = body["text"]
    except (KeyError, TypeError, AttributeError) as error:
        return _malformed(f"no completion in the reply ({type(error).__name__}: {error})")
    return _reply(content, reason, *tokens)


def _reply(content: Any, reason: Any, prompt_tokens: int, completion_tokens: int) -> Reply:
    if reason == "content_filter":
        return Failure(status=Status.CONTENT_FILTER, message="withheld by the server's content filter")
    if reason in ("abort", "error"):
        return Failure(status=Status.SERVER_5XX, message=f"the server gave the request up (finish reason {reason!r})")
    if reason not in ("stop", "length"):
        return _malformed(f"unknown finish reason {reason!r}")
    if content is None and reason == "stop":
        return _malformed("the content of the reply is null")
    if content is not None and not isinstance(content, str):
        return _malformed(f"the content of the reply is no text but {type(content).__name__}")
    text = well_formed(content or "")
    return Completion(
        status=_status(text, reason),
        text=text,
        finish_reason=reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )


def _count(value: Any) -> int:
    """A number of tokens, 0 when the server does not say."""
    if value is None:
        return 0
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number of tokens")
    return value


def _status(text: str, reason: str) -> Status:
    if text.strip():
        return Status.OK if reason == "stop" else Status.OK_TRUNCATED
    return Status.EMPTY if reason == "stop" else Status.NO_ANSWER_LENGTH


def _malformed(message: str) -> Failure:
    return Failure(status=Status.MALFORMED_RESPONSE, message=message[:500], http_status=200)

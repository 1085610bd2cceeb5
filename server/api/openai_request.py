"""What /v1/completions and /v1/chat/completions do alike with a body, before their prompts differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from server.api.openai_protocol import OpenAISampling
from server.errors import RequestError
from server.frontend.sample import Sample

_ENGINE_NAMES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
}

_SAMPLING_FIELDS = (
    "max_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "max_completion_tokens",
)


def sampling_of(body: OpenAISampling) -> tuple[Mapping[str, Any], Callable[[str], str]]:
    """The given parameters under the engine's names, and the name under which the client gave each."""
    given = body.model_dump(exclude_none=True, include=set(_SAMPLING_FIELDS))
    values = {_ENGINE_NAMES.get(name, name): value for name, value in given.items()}
    client_names = {_ENGINE_NAMES[name]: name for name in given if name in _ENGINE_NAMES}
    return values, lambda name: client_names.get(name, name)


def check_model(body: OpenAISampling, served: str) -> None:
    """Raises RequestError (404) when the client asks for another model than the one that would answer."""
    if body.model is not None and body.model != served:
        raise RequestError(
            f"model {body.model!r} does not exist here; this server has {served!r}", field="model", status=404
        )


def check_stream_options(body: OpenAISampling) -> None:
    """Raises RequestError for stream_options without stream."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true", field="stream_options")


def wants_usage_event(body: OpenAISampling) -> bool:
    """Whether a stream ends with an event that has the token counts."""
    return bool(body.stream_options and body.stream_options.include_usage)


def usage_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """Token counts of the whole request; a prompt counts once, however many choices it has."""
    firsts = [sample for sample in samples if sample.place.choice_index == 0]
    num_prompt_tokens = sum(len(sample.request.prompt_token_ids) for sample in firsts)
    num_completion_tokens = sum(len(sample.token_ids) for sample in samples)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(sample.num_cached_tokens for sample in firsts)},
    }


def finish_fields(sample: Sample) -> dict[str, Any]:
    """finish_reason is OpenAI's; stop_reason, which vLLM added, says which string or token it was."""
    finish = sample.finish
    return {
        "finish_reason": finish.type if finish else None,
        "stop_reason": finish.matched if finish else None,
    }

"""What /v1/completions and /v1/chat/completions do alike with sampling parameters, token counts and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from server.api.openai_protocol import OpenAISampling
from server.errors import RequestError
from server.frontend.field_checks import shown
from server.frontend.sample import Sample
from server.request import Grammar

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


def sampling_of(body: OpenAISampling, grammar: Grammar | None) -> tuple[Mapping[str, Any], Callable[[str], str]]:
    """The given parameters under the engine's names, and the name under which the client gave each."""
    given = body.model_dump(exclude_none=True, include=set(_SAMPLING_FIELDS))
    values = {_ENGINE_NAMES.get(name, name): value for name, value in given.items()}
    values |= {"grammar": grammar} if grammar else {}
    client_names = {_ENGINE_NAMES[name]: name for name in given if name in _ENGINE_NAMES}
    return values, lambda name: client_names.get(name, name)


class PromptLogprobFields(TypedDict):
    """Of a `PromptRequest`."""

    prompt_logprobs_start: int | None
    prompt_logprobs: int | None


def prompt_logprob_fields(body: OpenAISampling, logprobs: int | None, *, echo: bool) -> PromptLogprobFields:
    """What to ask of the engine for prompt_logprobs, for an echo of a prompt with logprobs, or for both.

    Raises RequestError for a negative number, which the engine would not see beside a larger one, and for
    prompt_logprobs in a stream, whose events have no place for them.
    """
    if body.prompt_logprobs is not None and body.prompt_logprobs < 0:
        raise RequestError(
            f"prompt_logprobs must be at least 0, but is {shown(body.prompt_logprobs)}", field="prompt_logprobs"
        )
    counts = [logprobs] if echo and logprobs is not None else []
    if body.prompt_logprobs is not None:
        if body.stream:
            raise RequestError("prompt_logprobs together with stream is not supported", field="prompt_logprobs")
        counts.append(body.prompt_logprobs)
    if not counts:
        return {"prompt_logprobs_start": None, "prompt_logprobs": None}
    return {"prompt_logprobs_start": 0, "prompt_logprobs": max(counts)}


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

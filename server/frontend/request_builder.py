"""From one prompt and what its client asked for to engine requests: every range is checked here, at the edge.

After this no value can harm the engine: token ids exist, numbers are finite and in range, and the sequence fits the
model's context and the KV cache.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from server.config import ServerConfig
from server.errors import RequestError
from server.frontend.field_checks import LOGIT_BIAS, PRIORITY, RANGES, Range, check_count, check_token_ids, shown
from server.ipc import EngineLimits
from server.request import EngineImage, EngineRequest, Grammar, SamplingParams

_MAX_STOP_STRING_LENGTH = 1024
_MAX_STOP_TOKEN_IDS = 1024
_SEED_MASK = 2**63 - 1

_UNCHANGED = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
)
"""Parameters that go to the engine as they are."""

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""OpenAI's word for what does not fit; clients look for it to shorten their prompts."""

_request_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class PromptRequest:
    """One prompt, understood by its route, not yet checked.

    sampling: what the client gave, by the names of `SamplingParams` and of `TextOptions`, and `n`; a grammar as such.
    field_of: the JSON path at which the client gave such a name; for messages. prompt_field: the same for the prompt.
    default_max_new_tokens: when the client gives none; None is as many as fit. clamp: shorten a max_new_tokens that
    does not fit instead of refusing it.
    logprobs: alternatives per generated token, None for no log-probabilities. prompt_logprobs_start: the first prompt
    position to report, None for none. prompt_logprobs: alternatives per reported prompt position, by default as many as
    logprobs. images: where in token_ids the images are. shown_tokens: special tokens that are text all the same.
    """

    token_ids: list[int]
    prompt_field: str
    sampling: Mapping[str, Any]
    field_of: Callable[[str], str]
    default_max_new_tokens: int | None
    clamp: bool = False
    logprobs: int | None = None
    logprobs_field: str = "top_logprobs_num"
    prompt_logprobs_start: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0
    images: tuple[EngineImage, ...] = ()
    shown_tokens: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """What the frontend itself needs to turn tokens into text.

    min_new_tokens: no stop string ends it before. prompt_only: the client wants to know about the prompt alone; what is
    generated, because every sequence gets a token, is dropped. shown_tokens: special tokens that are not skipped.
    """

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    min_new_tokens: int = 0
    prompt_only: bool = False
    shown_tokens: frozenset[int] = frozenset()


class BuiltSample(NamedTuple):
    """One sequence: what the engine runs, and how its tokens become text."""

    request: EngineRequest
    text: TextOptions


class RequestBuilder:
    """Checks and builds. eos_token_ids: what ends a sequence unless the client says `ignore_eos`."""

    def __init__(self, config: ServerConfig, eos_token_ids: Sequence[int]) -> None:
        self._config = config
        self._eos_token_ids = tuple(eos_token_ids)

    def build(self, prompt: PromptRequest, limits: EngineLimits) -> list[BuiltSample]:
        """The `n` sequences of one prompt. Raises RequestError naming field, limit and value."""
        _check_prompt(prompt, limits)
        max_new_tokens = _max_new_tokens(prompt, limits)
        params = self._sampling_params(prompt, limits, max_new_tokens)
        text = self._text_options(prompt, params)
        n = prompt.sampling.get("n", 1)
        Range(1, self._config.max_choices).check(prompt.field_of("n"), n)
        arrival_time = time.monotonic()
        return [
            BuiltSample(
                EngineRequest(
                    request_id=f"{next(_request_numbers):x}",
                    prompt_token_ids=prompt.token_ids,
                    params=_with_seed_of_sample(params, i),
                    priority=prompt.priority,
                    arrival_time=arrival_time,
                    images=prompt.images,
                ),
                text,
            )
            for i in range(n)
        ]

    def _sampling_params(self, prompt: PromptRequest, limits: EngineLimits, max_new_tokens: int) -> SamplingParams:
        given, field_of = prompt.sampling, prompt.field_of
        for name, allowed in RANGES.items():
            if name in given:
                allowed.check(field_of(name), given[name])
        PRIORITY.check("priority", prompt.priority)
        min_new_tokens = given.get("min_new_tokens", 0)
        Range(0, max_new_tokens).check(field_of("min_new_tokens"), min_new_tokens)
        if prompt.logprobs is not None:
            Range(0, self._config.max_logprobs).check(prompt.logprobs_field, prompt.logprobs)
        stop_token_ids = self._stop_token_ids(prompt, limits)
        top_k = given.get("top_k", 0)
        plain = {name: given[name] for name in _UNCHANGED if name in given}
        return SamplingParams(
            **plain,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            top_k=top_k if 0 < top_k < limits.vocab_size else 0,
            logit_bias=_logit_bias(given.get("logit_bias", {}), field_of("logit_bias"), limits.vocab_size),
            stop_token_ids=stop_token_ids,
            logprobs=prompt.logprobs,
            prompt_logprobs=self._num_prompt_logprobs(prompt),
            prompt_logprobs_start=prompt.prompt_logprobs_start or 0,
            grammar=_grammar(given, field_of, min_new_tokens),
        )

    def _num_prompt_logprobs(self, prompt: PromptRequest) -> int | None:
        if prompt.prompt_logprobs_start is None:
            return None
        if prompt.prompt_logprobs is None:
            return prompt.logprobs or 0
        Range(0, self._config.max_logprobs).check("prompt_logprobs", prompt.prompt_logprobs)
        return prompt.prompt_logprobs

    def _stop_token_ids(self, prompt: PromptRequest, limits: EngineLimits) -> tuple[int, ...]:
        field = prompt.field_of("stop_token_ids")
        stop_token_ids = list(prompt.sampling.get("stop_token_ids", ()))
        check_count(field, len(stop_token_ids), _MAX_STOP_TOKEN_IDS, "token ids")
        check_token_ids(field, stop_token_ids, limits.vocab_size)
        # With a --vocab-size below the tokenizer's, the model may not be able to produce one of them.
        can_end = [token_id for token_id in self._eos_token_ids if token_id < limits.vocab_size]
        eos = () if prompt.sampling.get("ignore_eos", False) else can_end
        return tuple(dict.fromkeys((*stop_token_ids, *eos)))

    def _text_options(self, prompt: PromptRequest, params: SamplingParams) -> TextOptions:
        field = prompt.field_of("stop")
        stop = prompt.sampling.get("stop", ())
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        check_count(field, len(stops), self._config.max_stop_strings, "strings")
        for text in stops:
            if not 1 <= len(text) <= _MAX_STOP_STRING_LENGTH:
                raise RequestError(
                    f"{field} must have strings of 1 to {_MAX_STOP_STRING_LENGTH} characters, "
                    f"but has {shown(text)} of {len(text)}",
                    field=field,
                )
        return TextOptions(
            stop=stops,
            include_stop_str_in_output=prompt.sampling.get("include_stop_str_in_output", False),
            skip_special_tokens=prompt.sampling.get("skip_special_tokens", True),
            min_new_tokens=params.min_new_tokens,
            prompt_only=prompt.sampling.get("max_new_tokens") == 0,
            shown_tokens=prompt.shown_tokens,
        )


def _with_seed_of_sample(params: SamplingParams, index: int) -> SamplingParams:
    """Sample i of a seeded request draws from seed + i, kept within what a 63-bit generator takes."""
    if params.seed is None:
        return params
    return msgspec.structs.replace(params, seed=(params.seed + index) & _SEED_MASK)


def _grammar(given: Mapping[str, Any], field_of: Callable[[str], str], min_new_tokens: int) -> Grammar | None:
    grammar: Grammar | None = given.get("grammar")
    if grammar is not None and min_new_tokens > 0:
        field = field_of("min_new_tokens")
        raise RequestError(f"{field} together with {grammar.field}, which says where the answer ends", field=field)
    return grammar


def _check_prompt(prompt: PromptRequest, limits: EngineLimits) -> None:
    if not prompt.token_ids:
        raise RequestError(
            f"{prompt.prompt_field} has no tokens; a prompt needs at least one", field=prompt.prompt_field
        )
    check_token_ids(prompt.prompt_field, prompt.token_ids, limits.vocab_size)


def _max_new_tokens(prompt: PromptRequest, limits: EngineLimits) -> int:
    """How many tokens to generate: what was asked for, if prompt and answer fit the context and the KV cache."""
    num_prompt_tokens = len(prompt.token_ids)
    kv_cache_tokens = limits.num_blocks * limits.block_size
    limit = min(limits.max_model_len, kv_cache_tokens)
    named = "max_model_len" if limit == limits.max_model_len else "the KV cache's size"
    room = limit - num_prompt_tokens
    if room < 1:
        raise RequestError(
            f"{prompt.prompt_field} has {num_prompt_tokens} tokens, but the limit ({named}) is {limit} tokens, "
            "at least one generated token included",
            field=prompt.prompt_field,
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    asked: int | None = prompt.sampling.get("max_new_tokens")
    if asked is None:
        return room if prompt.default_max_new_tokens is None else min(room, prompt.default_max_new_tokens)
    field = prompt.field_of("max_new_tokens")
    if asked == 0 and prompt.prompt_logprobs_start is not None:
        return 1
    if asked < 1:
        raise RequestError(
            f"{field} must be at least 1, but is {shown(asked)} (0 is for log-probabilities of the prompt alone)",
            field=field,
        )
    if asked > room and not prompt.clamp:
        raise RequestError(
            f"{field} is {shown(asked)} and the prompt has {num_prompt_tokens} tokens, together more than "
            f"the limit of {limit} tokens ({named}); at most {room} tokens can be generated",
            field=field,
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    return min(asked, room)


def _logit_bias(given: Mapping[str, float] | Mapping[int, float], field: str, vocab_size: int) -> dict[int, float]:
    """JSON's string keys to token ids."""
    bias: dict[int, float] = {}
    for key, value in given.items():
        try:
            token_id = int(key)
        except ValueError:
            token_id = -1
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{field} must have token ids from 0 to {vocab_size - 1} as keys, but has {shown(key)}", field=field
            )
        LOGIT_BIAS.check(f"{field}[{token_id}]", value)
        bias[token_id] = value
    return bias

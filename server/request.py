"""The request as the engine sees it, and what it answers: the few types every layer shares.

Who fills what: the frontend builds `SamplingParams` and `EngineRequest`; the engine fills `RequestOutput`, one per
request and step in which something happened to it. Text never crosses this boundary: token ids do, so stop strings,
detokenising and `n` belong to the frontend (it sends one `EngineRequest` per sample).
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]


class ReasoningTokens(msgspec.Struct, frozen=True, array_like=True):
    """The control tokens around a model's reasoning. is_open: the prompt has opened it already."""

    start_id: int
    end_id: int
    is_open: bool


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What the generated text must match as a whole.

    kind: how `text` says it: a JSON Schema, a regular expression (Rust's syntax), or a grammar in llguidance's Lark or
    in llama.cpp's GBNF, told apart by `::=`. field: the client's name for it, for messages.
    reasoning: leave the model free within these, and where they are not open yet, let it open them or not.
    """

    kind: Literal["json_schema", "regex", "grammar"]
    text: str
    field: str
    reasoning: ReasoningTokens | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose the next token of one request. Ranges are checked at the edge, by the frontend.

    temperature: 0 is greedy (so is anything below 1e-5). top_k: 0 is off. top_p: (0, 1], 1 is off.
    min_p: [0, 1], 0 is off.
    Filters apply in the order penalties, logit_bias, temperature, top_k, top_p, min_p, all in float32.
    logprobs: None for none, else how many alternatives to report beside the chosen token (0 is allowed).
    prompt_logprobs: the same for the prompt's own tokens, from position `prompt_logprobs_start` on.
    grammar: tokens that it does not allow are never chosen, and stop tokens only where it is satisfied.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    grammar: Grammar | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken without drawing."""
        return self.temperature < 1e-5


class EngineImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image in a prompt, as the vision encoder takes it.

    digest: identifies pixels and plan; equal digests mean equal embeddings. first_token, num_tokens: the prompt
    positions it fills (their token ids are placeholders). pixels_file: float32 numbers in C order, of `shape`: (tiles,
    3, height, width), or (patches, numbers per patch) at dynamic resolution, where imgs_sizes has the (height, width)
    of each grid of patches. The file may be removed once the engine has answered anything about the request.
    """

    digest: str
    first_token: int
    num_tokens: int
    pixels_file: str
    shape: tuple[int, ...]
    imgs_sizes: tuple[tuple[int, int], ...] = ()


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to continue.

    priority: smaller runs first; equal priorities run in order of arrival. images: in the order of their positions.
    arrival_time: time.monotonic() seconds (one clock for all processes of a machine). is_streamed: somebody reads the
    tokens as they come, so the time between them matters.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    arrival_time: float = 0.0
    images: tuple[EngineImage, ...] = ()
    is_streamed: bool = False


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token, and of the most likely tokens at its position (most likely first)."""

    token_id: int
    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]


class RequestTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds on the monotonic clock: durations, except where named otherwise."""

    queue_seconds: float
    time_to_first_token_seconds: float
    total_seconds: float


class ImageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request's images cost. Those that came with a cached prefix are neither encoded nor looked up.

    num_encoded: images encoded for this request. num_cache_hits: whose embeddings were there. encoder_seconds: its
    share, by image tokens, of the encoder's time in the steps that encoded them.
    """

    num_encoded: int = 0
    num_cache_hits: int = 0
    encoder_seconds: float = 0.0


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step did to one request.

    token_ids: tokens sampled since the last output (a stop token is the last of them and is not text).
    prompt_logprobs: only in the first output; entry i belongs to prompt position `prompt_logprobs_start + i`
    (position 0 of a prompt has no log-probability and is None).
    stop_token_id: the token that ended the sequence when finish_reason is "stop".
    image_usage: with the first token, of requests with images.
    invalid_field: when the request itself is at fault for the error, the name of the field that is.
    is_overload: the error is that too much is queued; the same request may succeed later.
    """

    request_id: str
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    timings: RequestTimings | None = None
    image_usage: ImageUsage | None = None
    invalid_field: str | None = None
    is_overload: bool = False

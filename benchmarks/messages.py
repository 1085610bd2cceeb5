"""What the parent and a worker tell each other: JSON messages, one per line, on its standard input and output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.aggregates import StepTime


class Pictures(msgspec.Struct, frozen=True, kw_only=True):
    """of_prompt: the index in `files` of the one picture that each prompt begins with."""

    files: list[str]
    of_prompt: list[int]
    tokens_per_image: int


class Load(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """parent -> worker, first of all.

    model: the resolved document (engine) or the Hugging Face directory. dtype, device, threads: resolved. pictures: for
    prompts that begin with one; their token ids hold its places.
    """

    model: str
    dtype: str
    device: str
    threads: int
    prompts: list[list[int]]
    pictures: Pictures | None = None


class Generate(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """parent -> worker: continue every prompt by exactly so many tokens.

    prompts: to continue instead of those of Load. batch_size: of a static batch. encode_each_once: the features of a
    picture are kept for its next question. concurrency: requests under way at once, None for all (engine only).
    """

    max_new_tokens: int
    prompts: list[list[int]] | None = None
    batch_size: int | None = None
    encode_each_once: bool = False
    concurrency: int | None = None


class Score(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """parent -> worker: how likely the prompts of Load make their own last tokens.

    num_scored_tokens: how many of each; as many prompts, the first ones, are scored. batch_size: of a static batch.
    """

    num_scored_tokens: list[int]
    batch_size: int | None = None


class Loaded(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """worker -> parent: warm. load_seconds: without imports. rss_*: resident, imports done and ready.

    weights_bytes: 0 when it is not known.
    """

    load_seconds: float
    rss_after_imports_bytes: int
    rss_ready_bytes: int
    weights_bytes: int


class Generated(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """worker -> parent. token_ids: by prompt. seconds: from the first prompt to the last token.

    decode_steps: steps that did nothing but decode (engine only). cached_tokens: prompt tokens not computed.
    draft_tokens: guessed, of which accepted_tokens came true.
    """

    seconds: float
    token_ids: list[list[int]]
    peak_rss_bytes: int
    decode_steps: list[StepTime] = msgspec.field(default_factory=list)
    cached_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


class Scored(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """worker -> parent. logprobs: by prompt, the sum over its scored tokens. cached_tokens: not computed again."""

    seconds: float
    logprobs: list[float]
    peak_rss_bytes: int
    cached_tokens: int = 0


class Failed(msgspec.Struct, tag=True, frozen=True):
    """worker -> parent: it ends now; reason is for people."""

    reason: str


ToWorker = Load | Generate | Score
FromWorker = Loaded | Generated | Scored | Failed

_to_worker: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)
_from_worker: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)

encode: Callable[[Any], bytes] = msgspec.json.encode
decode_to_worker = _to_worker.decode
decode_from_worker = _from_worker.decode

"""Replies of /generate, in SGLang's shape: text, output_ids, meta_info."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from server.api.context import ServerContext
from server.api.stream_progress import Part, StreamProgress
from server.frontend.sample import Sample
from server.request import TokenLogprob


class LogprobOptions(NamedTuple):
    """num_top: alternatives per position. with_text: fill the third place of each triple."""

    enabled: bool = False
    num_top: int = 0
    with_text: bool = False


class GenerateReplies:
    """Makes replies for one request.

    ids: each prompt's. is_single: reply with an object instead of a list. in_deltas: an event holds what is new since
    the one before, in place of all so far.
    """

    is_openai = False

    def __init__(
        self,
        ids: Sequence[str],
        is_single: bool,
        logprobs: LogprobOptions,
        context: ServerContext,
        *,
        in_deltas: bool = False,
    ) -> None:
        self._ids = ids
        self._is_single = is_single
        self._logprobs = logprobs
        self._detokenizers = context.detokenizers
        self._weight_version = context.weight_version
        self._progress = StreamProgress() if in_deltas else None

    def body(self, samples: Sequence[Sample]) -> Any:
        """The whole reply of a request without `stream`."""
        replies = [self._reply(Part(sample)) for sample in samples]
        return replies[0] if self._is_single else replies

    def first(self) -> Iterable[Any]:
        return ()

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        """`index` counts the samples of a batch, prompt by prompt."""
        for sample in changed:
            part = self._progress.next_part(sample) if self._progress else Part(sample)
            if part is not None:
                reply = self._reply(part)
                yield reply if self._is_single else {"index": sample.place.sample_index, **reply}

    def last(self) -> Iterable[Any]:
        return ()

    def _reply(self, part: Part) -> dict[str, Any]:
        return {"text": part.text, "output_ids": part.token_ids, "meta_info": self._meta_info(part)}

    def _meta_info(self, part: Part) -> dict[str, Any]:
        sample = part.sample
        prompt_id = self._ids[sample.place.prompt_index]
        timings = sample.timings
        meta: dict[str, Any] = {
            "id": prompt_id if sample.place.num_choices == 1 else f"{prompt_id}-{sample.place.choice_index}",
            "finish_reason": _finish_reason(sample),
            "prompt_tokens": len(sample.request.prompt_token_ids),
            "completion_tokens": len(sample.token_ids),
            "cached_tokens": sample.num_cached_tokens,
            "image_tokens": sum(image.num_tokens for image in sample.request.images),
            "weight_version": self._weight_version,
        }
        if sample.is_done:
            meta["e2e_latency"] = sample.total_seconds
            meta["queue_time"] = timings.queue_seconds if timings else None
            meta["ttft"] = sample.time_to_first_token
            meta["effective_sampling_params"] = _effective(sample)
        if sample.image_usage is not None:
            meta["image_cache_hits"] = sample.image_usage.num_cache_hits
            meta["images_encoded"] = sample.image_usage.num_encoded
            meta["encoder_seconds"] = sample.image_usage.encoder_seconds
        if self._logprobs.enabled:
            meta |= self._logprob_lists(part)
        return meta

    def _logprob_lists(self, part: Part) -> dict[str, Any]:
        sample = part.sample
        start = sample.request.params.prompt_logprobs_start
        prompt_ids = sample.request.prompt_token_ids[start:] if sample.prompt_logprobs and part.is_first else []
        of_prompt = list(zip(prompt_ids, sample.prompt_logprobs, strict=False))
        generated = sample.logprobs[part.first_token :]
        lists: dict[str, Any] = {
            "input_token_logprobs": [self._chosen(token_id, entry) for token_id, entry in of_prompt],
            "output_token_logprobs": [self._chosen(entry.token_id, entry) for entry in generated],
        }
        if self._logprobs.num_top > 0:
            lists["input_top_logprobs"] = [self._top(entry) for _, entry in of_prompt]
            lists["output_top_logprobs"] = [self._top(entry) for entry in generated]
        return lists

    def _chosen(self, token_id: int, entry: TokenLogprob | None) -> list[Any]:
        return [None if entry is None else entry.logprob, token_id, self._text(token_id)]

    def _top(self, entry: TokenLogprob | None) -> list[list[Any]] | None:
        if entry is None:
            return None
        pairs = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
        return [[logprob, token_id, self._text(token_id)] for token_id, logprob in pairs]

    def _text(self, token_id: int) -> str | None:
        return self._detokenizers.token_text(token_id) if self._logprobs.with_text else None


def _effective(sample: Sample) -> dict[str, Any]:
    """What the sequence was sampled with, every default filled in and every limit applied."""
    params: dict[str, Any] = msgspec.to_builtins(sample.request.params)
    options = sample.options
    params |= {
        "stop": options.stop,
        "include_stop_str_in_output": options.include_stop_str_in_output,
        "skip_special_tokens": options.skip_special_tokens,
    }
    return params | ({"max_new_tokens": 0} if options.prompt_only else {})


def _finish_reason(sample: Sample) -> dict[str, Any] | None:
    finish = sample.finish
    if finish is None:
        return None
    match finish.type:
        case "stop":
            return {"type": "stop", "matched": finish.matched}
        case "length":
            return {"type": "length", "length": len(sample.token_ids)}
        case "abort":
            return {"type": "abort", "message": "aborted on request"}

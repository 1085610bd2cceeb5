"""Replies of /generate, in SGLang's shape: text, output_ids, meta_info."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from server.frontend.detokenizer import DetokenizerFactory
from server.frontend.sample import Sample
from server.request import TokenLogprob


class LogprobOptions(NamedTuple):
    """num_top: alternatives per position. with_text: fill the third place of each triple."""

    enabled: bool = False
    num_top: int = 0
    with_text: bool = False


class GenerateReplies:
    """Makes replies for one request. ids: each prompt's. is_single: reply with an object instead of a list."""

    is_openai = False

    def __init__(
        self, ids: Sequence[str], is_single: bool, logprobs: LogprobOptions, detokenizers: DetokenizerFactory
    ) -> None:
        self._ids = ids
        self._is_single = is_single
        self._logprobs = logprobs
        self._detokenizers = detokenizers

    def body(self, samples: Sequence[Sample]) -> Any:
        """The whole reply of a request without `stream`."""
        return self._reply(samples[0]) if self._is_single else [self._reply(sample) for sample in samples]

    def first(self) -> Iterable[Any]:
        return ()

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        """Cumulative: each event holds all text so far. `index` counts the samples of a batch, prompt by prompt."""
        for sample in changed:
            reply = self._reply(sample)
            yield reply if self._is_single else {"index": sample.place.sample_index, **reply}

    def last(self) -> Iterable[Any]:
        return ()

    def _reply(self, sample: Sample) -> dict[str, Any]:
        return {"text": sample.text, "output_ids": sample.token_ids, "meta_info": self._meta_info(sample)}

    def _meta_info(self, sample: Sample) -> dict[str, Any]:
        prompt_id = self._ids[sample.place.prompt_index]
        timings = sample.timings
        meta: dict[str, Any] = {
            "id": prompt_id if sample.place.num_choices == 1 else f"{prompt_id}-{sample.place.choice_index}",
            "finish_reason": _finish_reason(sample),
            "prompt_tokens": len(sample.request.prompt_token_ids),
            "completion_tokens": len(sample.token_ids),
            "cached_tokens": sample.num_cached_tokens,
            "image_tokens": sum(image.num_tokens for image in sample.request.images),
        }
        if sample.is_done:
            meta["e2e_latency"] = sample.total_seconds
            meta["queue_time"] = timings.queue_seconds if timings else None
            meta["ttft"] = sample.time_to_first_token
        if self._logprobs.enabled:
            meta |= self._logprob_lists(sample)
        return meta

    def _logprob_lists(self, sample: Sample) -> dict[str, Any]:
        start = sample.request.params.prompt_logprobs_start
        prompt_ids = sample.request.prompt_token_ids[start:] if sample.prompt_logprobs else []
        of_prompt = list(zip(prompt_ids, sample.prompt_logprobs, strict=False))
        lists: dict[str, Any] = {
            "input_token_logprobs": [self._chosen(token_id, entry) for token_id, entry in of_prompt],
            "output_token_logprobs": [self._chosen(entry.token_id, entry) for entry in sample.logprobs],
        }
        if self._logprobs.num_top > 0:
            lists["input_top_logprobs"] = [self._top(entry) for _, entry in of_prompt]
            lists["output_top_logprobs"] = [self._top(entry) for entry in sample.logprobs]
        return lists

    def _chosen(self, token_id: int, entry: TokenLogprob | None) -> list[Any]:
        return [None if entry is None else entry.logprob, token_id, self._text(token_id)]

    def _top(self, entry: TokenLogprob | None) -> list[list[Any]] | None:
        if entry is None:
            return None
        pairs = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
        return [[logprob, token_id, self._text(token_id)] for token_id, logprob in pairs]

    def _text(self, token_id: int) -> str | None:
        if not self._logprobs.with_text:
            return None
        return self._detokenizers.token_bytes(token_id).decode(errors="replace")


def _finish_reason(sample: Sample) -> dict[str, Any] | None:
    finish = sample.finish
    if finish is None:
        return None
    match finish.type:
        case "stop":
            return {"type": "stop", "matched": finish.matched}
        case "length":
            return {"type": "length", "length": sample.request.params.max_new_tokens}
        case "abort":
            return {"type": "abort", "message": "aborted on request"}

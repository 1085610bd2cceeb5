"""Replies of TGI's /generate and /generate_stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from server.api.streaming import Framing
from server.frontend.detokenizer import Detokenizer, DetokenizerFactory
from server.frontend.sample import Sample
from server.request import TokenLogprob

TGI_EVENTS = Framing("text/event-stream", b"data:", b"\n\n")


class TgiReplies:
    """Makes replies for one request.

    full_text_of: what stands before the generated text, the prompt if it was asked for. seed: of a drawn answer.
    details: tokens and counts beside the text. prefill: the prompt's tokens among the details. num_top: alternatives
    per token. With several samples (best_of) the likeliest, by the mean over its tokens, is the answer.
    """

    is_openai = False

    def __init__(
        self,
        full_text_of: str,
        seed: int | None,
        detokenizers: DetokenizerFactory,
        *,
        details: bool,
        prefill: bool,
        num_top: int,
    ) -> None:
        self._before = full_text_of
        self._seed = seed
        self._detokenizers = detokenizers
        self._details = details
        self._prefill = prefill
        self._num_top = num_top
        self._detokenizer: Detokenizer | None = None
        self._num_sent = 0

    def body(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The whole reply of a request without a stream."""
        best, *others = sorted(samples, key=_mean_logprob, reverse=True)
        reply: dict[str, Any] = {"generated_text": self._before + best.text}
        if self._details:
            reply["details"] = self._whole_details(best)
            if others:
                reply["details"]["best_of_sequences"] = [
                    {"generated_text": self._before + other.text, **self._whole_details(other)} for other in others
                ]
        return reply

    def first(self) -> Iterable[Any]:
        return ()

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        """One token an event; the last one also has the whole text."""
        (sample,) = changed
        if self._detokenizer is None:
            self._detokenizer = self._detokenizers.create(sample.request.prompt_token_ids, skip_special_tokens=True)
        for index in range(self._num_sent, len(sample.token_ids)):
            is_last = sample.is_done and index == len(sample.token_ids) - 1
            entry = sample.logprobs[index]
            event: dict[str, Any] = {"index": index + 1, "token": self._next_token(entry, is_last=is_last)}
            if self._num_top:
                event["top_tokens"] = self._top_tokens(entry)
            event["generated_text"] = self._before + sample.text if is_last else None
            event["details"] = self._counts(sample) if is_last and self._details else None
            yield event
        self._num_sent = len(sample.token_ids)

    def last(self) -> Iterable[Any]:
        return ()

    def _next_token(self, entry: TokenLogprob, *, is_last: bool) -> dict[str, Any]:
        """With the text that it completes, so that the texts of all tokens joined are the answer's."""
        token = self._token(entry.token_id, entry.logprob)
        if not token["special"]:
            assert self._detokenizer is not None
            token["text"] = self._detokenizer.push(entry.token_id) + (self._detokenizer.flush() if is_last else "")
        return token

    def _whole_details(self, sample: Sample) -> dict[str, Any]:
        detokenizer = self._detokenizers.create(sample.request.prompt_token_ids, skip_special_tokens=True)
        self._detokenizer = detokenizer
        last = len(sample.logprobs) - 1
        details = self._counts(sample)
        details["prefill"] = self._prompt_tokens(sample) if self._prefill else []
        details["tokens"] = [
            self._next_token(entry, is_last=index == last) for index, entry in enumerate(sample.logprobs)
        ]
        if self._num_top:
            details["top_tokens"] = [self._top_tokens(entry) for entry in sample.logprobs]
        return details

    def _counts(self, sample: Sample) -> dict[str, Any]:
        return {
            "finish_reason": _finish_reason(sample),
            "generated_tokens": len(sample.token_ids),
            "input_length": len(sample.request.prompt_token_ids),
            "seed": self._seed,
        }

    def _prompt_tokens(self, sample: Sample) -> list[dict[str, Any]]:
        pairs = zip(sample.request.prompt_token_ids, sample.prompt_logprobs, strict=True)
        return [
            {
                "id": token_id,
                "text": self._detokenizers.token_text(token_id),
                "logprob": None if entry is None else entry.logprob,
            }
            for token_id, entry in pairs
        ]

    def _top_tokens(self, entry: TokenLogprob) -> list[dict[str, Any]]:
        return [self._token(*pair) for pair in zip(entry.top_token_ids, entry.top_logprobs, strict=True)]

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        special = self._detokenizers.is_special(token_id)
        return {"id": token_id, "text": self._detokenizers.token_text(token_id), "logprob": logprob, "special": special}


def _finish_reason(sample: Sample) -> str | None:
    finish = sample.finish
    if finish is None:
        return None
    if finish.type != "stop":
        return finish.type
    return "eos_token" if isinstance(finish.matched, int) else "stop_sequence"


def _mean_logprob(sample: Sample) -> float:
    return sum(entry.logprob for entry in sample.logprobs) / max(len(sample.logprobs), 1)

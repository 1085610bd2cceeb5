"""One sequence on its way back: tokens in, text out, until it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from server.errors import MegaserveError, RequestFailedError
from server.frontend.detokenizer import DetokenizerFactory
from server.frontend.request_builder import BuiltSample
from server.frontend.stop_strings import StopStrings
from server.request import FinishReason, ImageUsage, RequestOutput, RequestTimings, TokenLogprob

LOGPROB_FLOOR = -9999.0
"""What -inf becomes: JSON has no infinity, and OpenAI uses this number for "too unlikely to say"."""


@dataclass(frozen=True)
class Finish:
    """type: why the sequence ended. matched: the stop string or stop token, when it was one."""

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None


class SamplePlace(NamedTuple):
    """Where a sequence belongs in its HTTP request: overall, and as one of `num_choices` for one prompt."""

    sample_index: int
    prompt_index: int
    choice_index: int
    num_choices: int


class Sample:
    """The state of one sequence; an `OutputSink` of the engine client.

    token_ids: all generated, a stop token included.
    text: what can be shown so far; final when `finish` is set. Tokens become text as they arrive when `incremental`,
    and all at once at the end otherwise (the result is the same).
    on_change: called when there is something new for whoever waits; on_stop: called when a stop string ended the
    sequence, so that the engine must be told.
    """

    def __init__(
        self,
        built: BuiltSample,
        detokenizers: DetokenizerFactory,
        *,
        place: SamplePlace,
        streaming: bool,
        on_change: Callable[[Sample], None],
        on_stop: Callable[[Sample], None],
    ) -> None:
        self.request = built.request
        self.options = built.text
        self.place = place
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob | None] = []
        self.num_cached_tokens = 0
        self.text = ""
        self.finish: Finish | None = None
        self.error: MegaserveError | None = None
        self.timings: RequestTimings | None = None
        self.image_usage: ImageUsage | None = None
        self.time_to_first_token: float | None = None
        self.total_seconds = 0.0
        self._streaming = streaming
        self._incremental = streaming or bool(built.text.stop)
        self._num_decoded = 0
        self._detokenizer = detokenizers.create(
            built.request.prompt_token_ids,
            skip_special_tokens=built.text.skip_special_tokens,
            shown=built.text.shown_tokens,
        )
        self._stops = StopStrings(built.text.stop, include_in_output=built.text.include_stop_str_in_output)
        self._on_change = on_change
        self._on_stop = on_stop

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self.finish is not None or self.error is not None

    def put(self, output: RequestOutput) -> None:
        """Take in one step's output."""
        if self.is_done:
            return
        if self.options.prompt_only:
            output = _of_prompt_alone(output)
        try:
            self._take_logprobs(output)
        except RequestFailedError as error:
            self.fail(error)
            self._on_stop(self)
            return
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self.timings = output.timings or self.timings
        self.image_usage = output.image_usage or self.image_usage
        if output.token_ids and self.time_to_first_token is None:
            self.time_to_first_token = self._elapsed()
        self.token_ids += output.token_ids
        if self._incremental or output.finish_reason is not None:
            stopped = self._decode(without_last=output.stop_token_id is not None)
            if stopped is None and output.finish_reason is not None:
                self._end(output)
        if self._streaming or self.is_done:
            self._on_change(self)

    def fail(self, error: MegaserveError) -> None:
        """No more outputs will come."""
        if not self.is_done:
            self.error = error
            self._on_change(self)

    def abort(self) -> None:
        """End the sequence with what there is; the caller tells the engine."""
        if not self.is_done:
            if self._decode(without_last=False) is None:
                self._set_finish(Finish("abort"), flush=True)
            self._on_change(self)

    def _take_logprobs(self, output: RequestOutput) -> None:
        if output.logprobs is not None:
            self.logprobs += [_finite(entry) for entry in output.logprobs]
        if output.prompt_logprobs is not None:
            self.prompt_logprobs += [None if entry is None else _finite(entry) for entry in output.prompt_logprobs]

    def _decode(self, *, without_last: bool) -> str | None:
        """Turn the tokens not yet seen into text; the stop string that ended the sequence, if one did."""
        end = len(self.token_ids) - without_last
        while self._num_decoded < end:
            piece = self._detokenizer.push(self.token_ids[self._num_decoded])
            self._num_decoded += 1
            if self._num_decoded < self.options.min_new_tokens:
                self.text += piece
                continue
            shown, matched = self._stops.push(piece)
            self.text += shown
            if matched is not None:
                self._stop_at(matched)
                return matched
        return None

    def _stop_at(self, matched: str) -> None:
        """A stop string ended the sequence at the last decoded token; tokens after it are dropped."""
        del self.token_ids[self._num_decoded :]
        del self.logprobs[self._num_decoded :]
        self._set_finish(Finish("stop", matched), flush=False)
        self._on_stop(self)

    def _end(self, output: RequestOutput) -> None:
        assert output.finish_reason in ("stop", "length", "abort")
        self._set_finish(Finish(output.finish_reason, output.stop_token_id), flush=True)

    def _set_finish(self, finish: Finish, *, flush: bool) -> None:
        if flush:
            self._flush_text()
        if self.finish is None:
            self.finish = finish
        self.total_seconds = self._elapsed()

    def _flush_text(self) -> None:
        shown, matched = self._stops.push(self._detokenizer.flush())
        self.text += shown
        if matched is not None:
            self.finish = Finish("stop", matched)
        else:
            self.text += self._stops.flush()

    def _elapsed(self) -> float:
        return time.monotonic() - self.request.arrival_time


def _of_prompt_alone(output: RequestOutput) -> RequestOutput:
    reason: FinishReason | None = None if output.finish_reason is None else "length"
    return msgspec.structs.replace(output, token_ids=[], logprobs=None, finish_reason=reason, stop_token_id=None)


def _finite(entry: TokenLogprob) -> TokenLogprob:
    """The entry with -inf floored. Raises RequestFailedError for NaN, which means that the model's output is broken."""
    values = (entry.logprob, *entry.top_logprobs)
    if all(map(math.isfinite, values)):
        return entry
    if any(map(math.isnan, values)):
        raise RequestFailedError("the model produced a log-probability that is not a number")
    return TokenLogprob(
        token_id=entry.token_id,
        logprob=max(entry.logprob, LOGPROB_FLOOR),
        top_token_ids=entry.top_token_ids,
        top_logprobs=[max(value, LOGPROB_FLOOR) for value in entry.top_logprobs],
    )

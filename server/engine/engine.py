"""The step loop of rank 0: schedule, execute, sample, update."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_providers.kernels.library import Kernels
from server.engine.grammar_admission import GrammarAdmission, invalid_grammar
from server.engine.grammar_checker import GrammarError
from server.engine.image_cache import ImageWork
from server.engine.model_runner import ModelRunner
from server.engine.prompt_image import ImageFiles
from server.engine.sampler import Sampler, token_logprobs
from server.engine.scheduler import ScheduledSequence, Scheduler
from server.engine.sequence import SampledToken, Sequence, failed_output
from server.engine.speculation import accepted
from server.engine.step_plan import StepKind, StepPlan, build_plan, order_for_execution
from server.ipc import EngineStats, StepRecord
from server.request import EngineRequest, RequestOutput, RequestTimings

_GRAMMAR_WAIT_SECONDS = 0.01  # new messages are looked for as often
_MOST_RECORDS = 1024  # of steps that nobody has asked about yet


class Engine:
    """Owns the requests. Not thread-safe; a step runs to its end before anything else happens."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        grammars: GrammarAdmission,
        kernels: Kernels | None = None,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._grammars = grammars
        self._kernels = kernels
        self._sampler = Sampler(kernels)
        self._image_files = ImageFiles()
        self._num_steps = 0
        self._last_step_seconds = 0.0
        self._records: deque[StepRecord] = deque(maxlen=_MOST_RECORDS)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or len(self._grammars) > 0

    def add(self, requests: Iterable[EngineRequest]) -> list[RequestOutput]:
        """Queue requests; those that can never run are answered at once."""
        refused = []
        for request in requests:
            try:
                images = tuple(self._image_files.open(image) for image in request.images)
            except (OSError, ValueError) as error:
                refused.append(failed_output(request.request_id, f"an image's pixels cannot be read: {error}"))
                continue
            sequence = Sequence(request, self._scheduler.limits.block_size, images)
            reason = self._scheduler.refusal(sequence)
            if reason is not None:
                refused.append(failed_output(request.request_id, reason))
            elif request.params.grammar is not None:
                self._grammars.add(sequence)
            else:
                self._scheduler.add(sequence)
        return refused

    def abort(self, request_ids: Items[str]) -> None:
        """Forget requests and free their blocks at once; unknown ids are ignored."""
        self._scheduler.abort(request_ids)
        self._grammars.abort(request_ids)
        for request_id in request_ids:
            self._sampler.forget(request_id)

    def flush_prefix_cache(self) -> None:
        self._scheduler.pool.forget_all()
        if self._scheduler.images is not None:
            self._scheduler.images.forget_all()

    def step(self) -> list[RequestOutput]:
        """One forward pass over everything that is scheduled, and what it did to each request."""
        refused = self._admit_compiled()
        if not self._scheduler.has_work:
            self.signal(StepKind.IDLE)
            return refused
        started = time.monotonic()
        scheduled = order_for_execution(self._scheduler.schedule())
        images = self._scheduler.images
        work = ImageWork() if images is None else images.end_step()
        plan = self._runner.broadcast_plan(build_plan(scheduled, work, None if images is None else images.slot_of))
        encoded_before = self._runner.encoder_seconds
        sampled = self._sample(scheduled, plan, [image.pixels for _, image in work.encoded])
        encoder_seconds = self._runner.encoder_seconds - encoded_before
        _share_encoder_seconds(scheduled, work, encoder_seconds)
        outputs = self._update(scheduled, sampled, started)
        if scheduled:
            self._record(scheduled, time.monotonic() - started, encoder_seconds)
        return refused + outputs

    @property
    def num_held_blocks(self) -> int:
        """KV blocks that sequences hold: none while there is no work."""
        return self._scheduler.pool.num_blocks - self._scheduler.pool.num_free

    def take_records(self) -> list[StepRecord]:
        """The steps since the last call."""
        records = list(self._records)
        self._records.clear()
        return records

    def close(self) -> None:
        """No more requests will come."""
        self._grammars.close()

    def signal(self, kind: StepKind) -> None:
        """Tell the other ranks that there is nothing to do, or that it is over."""
        self._runner.broadcast_plan(StepPlan.signal(kind))

    def stats(self) -> EngineStats:
        """Counters and gauges as of now."""
        scheduler, counters = self._scheduler, self._scheduler.counters
        return EngineStats(
            num_steps=self._num_steps,
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting + len(self._grammars),
            num_compiling=len(self._grammars),
            num_blocks=scheduler.pool.num_blocks,
            num_free_blocks=scheduler.pool.num_free,
            total_prompt_tokens=counters.prompt_tokens,
            total_generated_tokens=counters.generated_tokens,
            total_cached_tokens=counters.cached_tokens,
            total_preemptions=counters.preemptions,
            total_split_prefills=counters.split_prefills,
            total_finished=counters.finished,
            total_aborted=counters.aborted,
            total_drafts=counters.drafts,
            total_draft_tokens=counters.draft_tokens,
            total_accepted_tokens=counters.accepted_tokens,
            last_step_seconds=self._last_step_seconds,
            total_images_encoded=scheduler.images.num_encoded if scheduler.images else 0,
            total_image_cache_hits=scheduler.images.num_hits if scheduler.images else 0,
            total_encoder_seconds=self._runner.encoder_seconds,
        )

    def _admit_compiled(self) -> list[RequestOutput]:
        """Queue the sequences whose grammar is ready, waiting a little when there is nothing else to do."""
        if not self._grammars:
            return []
        idle = not self._scheduler.has_work
        admission = self._grammars.take(wait_seconds=_GRAMMAR_WAIT_SECONDS if idle else 0.0)
        for sequence in admission.ready:
            self._scheduler.add(sequence)
        return admission.refused

    def _sample(
        self, scheduled: Items[ScheduledSequence], plan: StepPlan, pixels: Items[NDArray[np.float32]]
    ) -> dict[str, list[SampledToken]]:
        """By request id, what was sampled behind its last own token and behind each guess.

        Prompt log-probabilities go straight to their sequences.
        """
        rows: list[tuple[Sequence, int | None]] = []  # per row of logits: the prompt position it predicts, None samples
        for item, (begin, end) in zip(scheduled, plan.logit_rows.tolist(), strict=True):
            first_predicted = item.sequence.num_computed + 1
            for row in range(begin, end):
                is_sample = item.samples and row >= item.num_own - 1
                rows.append((item.sequence, None if is_sample else first_predicted + row))

        sampled: dict[str, list[SampledToken]] = {}
        done = 0
        for logits in self._runner.execute(plan, pixels):
            piece = rows[done : done + len(logits)]
            done += len(logits)
            self._record_prompt_logprobs(logits, piece)
            sampling = [row for row, (_, position) in enumerate(piece) if position is None]
            if sampling:
                sequences = [piece[row][0] for row in sampling]
                chosen = self._sampler.sample(logits if len(sampling) == len(piece) else logits[sampling], sequences)
                for sequence, token in zip(sequences, chosen, strict=True):
                    sampled.setdefault(sequence.request_id, []).append(token)
        return sampled

    @torch.inference_mode()
    def _record_prompt_logprobs(self, logits: Tensor, piece: Items[tuple[Sequence, int | None]]) -> None:
        wanted = [(row, s, position) for row, (s, position) in enumerate(piece) if position is not None]
        if not wanted:
            return
        tokens = [sequence.token_ids[position] for _, sequence, position in wanted]
        counts = [sequence.params.prompt_logprobs or 0 for _, sequence, _ in wanted]
        rows = [row for row, _, _ in wanted]
        own = logits if len(rows) == len(logits) else logits[rows]
        logprobs = token_logprobs(own, tokens, counts, self._kernels)
        for (_, sequence, _), logprob in zip(wanted, logprobs, strict=True):
            if not sequence.prompt_logprobs and sequence.params.prompt_logprobs_start == 0:
                sequence.prompt_logprobs.append(None)
            sequence.prompt_logprobs.append(logprob)

    def _update(
        self, scheduled: Items[ScheduledSequence], sampled: dict[str, list[SampledToken]], started: float
    ) -> list[RequestOutput]:
        now = time.monotonic()
        outputs = []
        for item in scheduled:
            sequence = item.sequence
            if sequence.first_scheduled_time is None:
                sequence.first_scheduled_time = started
            self._scheduler.computed(item)
            if not item.samples:
                continue
            tokens = sampled[sequence.request_id]
            if item.guess:
                tokens = accepted(item.guess, tokens)
            if tokens[0].error is not None:
                self._finish(sequence)
                outputs.append(failed_output(sequence.request_id, tokens[0].error))
                continue
            outputs.append(self._append(sequence, tokens, now))
        return outputs

    def _append(self, sequence: Sequence, tokens: Items[SampledToken], now: float) -> RequestOutput:
        is_first = sequence.num_output_tokens == 0
        if is_first:
            sequence.first_token_time = now
        prompt_logprobs = None
        if sequence.wants_prompt_logprobs:
            # A prompt of one token predicts nothing of itself; its only entry is the one without a value.
            starts_at_zero = sequence.params.prompt_logprobs_start == 0
            prompt_logprobs = sequence.prompt_logprobs or ([None] if starts_at_zero else [])
        reason, stop_token_id = None, None
        kept: list[SampledToken] = []
        for token in tokens:
            if kept:
                self._scheduler.guess_came_true(sequence)
            try:
                sequence.append(token.token_id)
            except GrammarError as error:
                self._finish(sequence)
                return invalid_grammar(sequence, error)
            kept.append(token)
            reason, stop_token_id = sequence.stop_reason(self._scheduler.limits.max_model_len) or (None, None)
            if reason is not None:
                self._finish(sequence)
                break
        self._scheduler.counters.generated_tokens += len(kept)
        logprobs = [token.logprob for token in kept if token.logprob is not None]
        return RequestOutput(
            request_id=sequence.request_id,
            token_ids=[token.token_id for token in kept],
            logprobs=None if sequence.params.logprobs is None else logprobs,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=sequence.num_cached,
            finish_reason=reason,
            stop_token_id=stop_token_id,
            timings=_timings(sequence, now) if is_first or reason is not None else None,
            image_usage=sequence.image_usage() if is_first else None,
        )

    def _record(self, scheduled: Items[ScheduledSequence], seconds: float, encoder_seconds: float) -> None:
        num_decoding = sum(item.num_own == 1 for item in scheduled)
        num_tokens = sum(item.num_new for item in scheduled)
        phase: Literal["decode", "prefill", "mixed"] = "mixed"
        if num_decoding in (0, len(scheduled)):
            phase = "decode" if num_decoding else "prefill"
        self._records.append(StepRecord(phase, seconds, len(scheduled), num_tokens))
        if self._scheduler.cost is not None:
            # A guess costs what a decode token does: both are rows more in a small batch.
            num_decode_tokens = sum(item.num_new for item in scheduled if item.num_own == 1)
            num_prefill_tokens = num_tokens - num_decode_tokens
            self._scheduler.cost.observe(num_decode_tokens, num_prefill_tokens, seconds - encoder_seconds)
        self._num_steps += 1
        self._last_step_seconds = seconds

    def _finish(self, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)
        self._sampler.forget(sequence.request_id)


def _share_encoder_seconds(scheduled: Items[ScheduledSequence], work: ImageWork, seconds: float) -> None:
    """Each request bears the encoder's time in proportion to the tokens of the images encoded for it."""
    encoded = {image for _, image in work.encoded}
    if not encoded:
        return
    seconds_per_token = seconds / work.num_encoded_tokens
    for item in scheduled:
        tokens = sum(image.num_tokens for image in item.sequence.images if image in encoded)
        item.sequence.encoder_seconds += seconds_per_token * tokens


def _timings(sequence: Sequence, now: float) -> RequestTimings:
    arrival = sequence.request.arrival_time
    scheduled = sequence.first_scheduled_time if sequence.first_scheduled_time is not None else now
    first_token = sequence.first_token_time if sequence.first_token_time is not None else now
    return RequestTimings(
        queue_seconds=max(0.0, scheduled - arrival),
        time_to_first_token_seconds=max(0.0, first_token - arrival),
        total_seconds=max(0.0, now - arrival),
    )

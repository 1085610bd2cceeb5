"""Decides, once per step, which sequences advance by how many tokens, and keeps their blocks.

Order within a step: running sequences first, decode before prefill, then waiting ones by priority and arrival. A
prompt longer than what is left of the token budget is computed in chunks over several steps. When blocks run out, the
running sequence that is last in order gives its blocks back and starts over later (preemption by recompute; what it
had computed often still lies in the prefix cache). While somebody reads tokens as they come, prompts get only so much
of a step as its measured cost allows, see `StepCost`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from server.engine.block_pool import BlockHash, BlockPool
from server.engine.image_cache import ImageCache
from server.engine.sequence import Sequence
from server.engine.speculation import least_likelihood, may_guess, most_useful
from server.engine.step_cost import StepCost

# Bounds the work of one step when many waiting sequences share a beginning that is just being computed.
_MOST_PASSED_OVER = 64


@dataclass(frozen=True)
class SchedulerLimits:
    """max_batched_tokens and max_running_requests bound one step; max_model_len one sequence.

    max_model_len must fit in the pool, so that a sequence which runs alone can always go on. speculative_tokens: most
    guesses of a sequence in one step, see `speculation`.
    """

    max_batched_tokens: int
    max_running_requests: int
    max_model_len: int
    block_size: int
    prefix_caching: bool = True
    speculative_tokens: int = 0


class ScheduledSequence(NamedTuple):
    """num_new tokens of `sequence`, from its num_computed on. samples: they are all it has, so a token follows.

    guess: the last of the num_new tokens, where they are not the sequence's own but guesses of what follows.
    """

    sequence: Sequence
    num_new: int
    samples: bool
    guess: tuple[int, ...] = ()

    @property
    def num_own(self) -> int:
        """Tokens that are no guesses."""
        return self.num_new - len(self.guess)


@dataclass
class SchedulerCounters:
    """Totals since start."""

    preemptions: int = 0
    split_prefills: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


class Scheduler:
    """Waiting and running sequences over one block pool. Pure bookkeeping: no tensors, no clock.

    cost: told by the owner what steps took; None leaves prefills unbounded.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        pool: BlockPool,
        images: ImageCache | None = None,
        cost: StepCost | None = None,
    ) -> None:
        assert limits.max_model_len <= pool.num_blocks * limits.block_size
        self.limits = limits
        self.pool = pool
        self.images = images
        self.cost = cost
        self.running: list[Sequence] = []
        self.counters = SchedulerCounters()
        self._waiting: list[Sequence] = []  # sorted by order
        self._by_id: dict[str, Sequence] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._waiting)

    def refusal(self, sequence: Sequence) -> str | None:
        """Why this sequence could never run, or None."""
        most = self.limits.max_model_len - 1
        if not 0 < sequence.num_prompt_tokens <= most:
            return f"the prompt has {sequence.num_prompt_tokens} tokens, this server takes 1 to {most}"
        largest = max((image.num_tokens for image in sequence.images), default=0)
        if largest > (self.images.max_tokens_of_image if self.images else 0):
            return f"an image of {largest} tokens does not fit in the image cache; --image-cache-mb sets its size"
        if sequence.request_id in self._by_id:
            return f"request id {sequence.request_id!r} is already in use"
        return None

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that `refusal` has nothing against."""
        self._by_id[sequence.request_id] = sequence
        bisect.insort(self._waiting, sequence, key=lambda waiting: waiting.order)
        self.counters.prompt_tokens += sequence.num_prompt_tokens

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget sequences and free their blocks at once; unknown ids are ignored."""
        for request_id in request_ids:
            sequence = self._by_id.get(request_id)
            if sequence is not None:
                self._remove(sequence)
                self.counters.aborted += 1

    def finish(self, sequence: Sequence) -> None:
        """A sequence is complete, or given up."""
        self._remove(sequence)
        self.counters.finished += 1

    def schedule(self) -> list[ScheduledSequence]:
        """The next step's work, decode first. Blocks for it are allocated. Empty only when nothing can run."""
        step = _Step(budget=self.limits.max_batched_tokens)
        if self.images is not None:
            self.images.begin_step()
        self.running.sort(key=lambda sequence: sequence.order)
        decoding = [sequence for sequence in self.running if sequence.num_uncomputed == 1]
        prefilling = [sequence for sequence in self.running if sequence.num_uncomputed > 1]
        for sequence in decoding:
            if sequence.is_running:  # a preemption may have stopped it since
                self._advance(sequence, step)
        self._bound_prefill(step)
        for sequence in prefilling:
            if sequence.is_running:
                self._advance(sequence, step)
        self._admit(step)
        if self.limits.speculative_tokens:
            self._add_guesses(step)
        return step.scheduled

    def computed(self, scheduled: ScheduledSequence) -> None:
        """The step ran: the tokens have keys and values now, and full blocks become findable. Guesses do not count."""
        self._note_computed(scheduled.sequence, scheduled.num_own)

    def guess_came_true(self, sequence: Sequence) -> None:
        """The newest token was guessed, so its keys and values are there. Those of wrong guesses are overwritten."""
        self._note_computed(sequence, 1)
        self.counters.accepted_tokens += 1

    def _note_computed(self, sequence: Sequence, count: int) -> None:
        first = sequence.num_computed // self.limits.block_size
        sequence.num_computed += count
        if self.limits.prefix_caching:
            hashes = sequence.block_hashes()
            for index in range(first, sequence.num_computed // self.limits.block_size):
                self.pool.remember(sequence.blocks[index], hashes[index])

    def _bound_prefill(self, step: _Step) -> None:
        """Leave prefills what keeps the step short enough for those who read tokens as they come."""
        if self.cost is None or not any(item.sequence.request.is_streamed for item in step.scheduled):
            return
        affordable = self.cost.prefill_within_bound(len(step.scheduled))
        if affordable is not None:
            # At least a block: a prompt that waits for ever is worse than a slow token.
            step.budget = min(step.budget, max(affordable, self.limits.block_size))

    def _advance(self, sequence: Sequence, step: _Step) -> None:
        """Schedule a running sequence's next tokens, making room by preemption if need be."""
        num_new = self._with_images(sequence, sequence.num_computed, min(sequence.num_uncomputed, step.budget))
        if num_new == 0:
            return
        needed = sequence.num_blocks_for(sequence.num_computed + num_new)
        if needed:  # of a decoding sequence once in so many steps as a block has tokens
            while not self.pool.can_allocate(needed):
                victim = self._victim(step)
                self._preempt(victim)
                if victim is sequence:
                    return
            sequence.blocks += self.pool.allocate(needed)
        self._take(sequence, num_new, step)

    def _add_guesses(self, step: _Step) -> None:
        """Let sequences that decode compute guesses too, with what is left over: for a guess nobody waits."""
        decoding = [index for index, item in enumerate(step.scheduled) if item.samples and item.num_new == 1]
        least = least_likelihood(len(decoding))
        for index in decoding:
            sequence = step.scheduled[index].sequence
            if may_guess(sequence):
                most = min(self.limits.speculative_tokens, step.budget, self._room_for_guesses(sequence))
                guess = sequence.guess(min(most, most_useful(sequence, self.limits.max_model_len)), least)
                if guess:
                    self._take_guess(index, guess, step)

    def _room_for_guesses(self, sequence: Sequence) -> int:
        """Places in its blocks, and in those that are free beyond one for each running sequence's next step."""
        spare = max(0, self.pool.num_free - len(self.running))
        return (len(sequence.blocks) + spare) * self.limits.block_size - sequence.num_tokens

    def _take_guess(self, index: int, guess: tuple[int, ...], step: _Step) -> None:
        sequence = step.scheduled[index].sequence
        sequence.blocks += self.pool.allocate(sequence.num_blocks_for(sequence.num_tokens + len(guess)))
        step.scheduled[index] = step.scheduled[index]._replace(num_new=1 + len(guess), guess=guess)
        step.budget -= len(guess)
        self.counters.drafts += 1
        self.counters.draft_tokens += len(guess)

    def _victim(self, step: _Step) -> Sequence:
        """The running sequence that is last in order and has no work in this step yet."""
        taken = {scheduled.sequence.request_id for scheduled in step.scheduled}
        return max((sequence for sequence in self.running if sequence.request_id not in taken), key=lambda s: s.order)

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        victim.is_running = False
        self.pool.release(victim.blocks)
        victim.reset_for_recompute()
        bisect.insort(self._waiting, victim, key=lambda waiting: waiting.order)
        self.counters.preemptions += 1

    def _admit(self, step: _Step) -> None:
        """Start waiting sequences in order while there are budget, places and blocks."""
        index = 0  # of the first waiting sequence that is not passed over in this step
        while step.budget > 0 and len(self.running) < self.limits.max_running_requests:
            if index >= min(len(self._waiting), _MOST_PASSED_OVER):
                return
            sequence = self._waiting[index]
            cached = self._cached_blocks(sequence)
            if self._is_being_computed(sequence, len(cached), step):
                index += 1  # its beginning is computed in this very step: next step it comes for free
                continue
            # All of it must fit, not just the first chunk: a half-computed prompt that waits for blocks blocks others.
            needed = sequence.num_blocks_for(sequence.num_tokens + 1) - len(cached)
            if not self.pool.can_allocate(needed + self.pool.num_free_among(cached)):
                return
            computed = self._num_computed_by(cached, sequence)
            num_new = self._with_images(sequence, computed, min(sequence.num_tokens - computed, step.budget))
            if num_new == 0:
                return
            del self._waiting[index]
            self._start(sequence, cached, num_new, step)

    def _with_images(self, sequence: Sequence, begin: int, num_new: int) -> int:
        """How many of num_new tokens from position `begin` on can be computed with the images this step can have."""
        if self.images is not None and begin < sequence.num_prompt_tokens:
            for image in sequence.images_within(begin, begin + num_new):
                was_cached = self.images.holds(image)
                if not self.images.make_available(image):
                    return max(0, image.first_token - begin)
                sequence.note_image(image, was_cached=was_cached)
        return num_new

    def _start(self, sequence: Sequence, cached: list[int], num_new: int, step: _Step) -> None:
        self.pool.hold(cached)
        sequence.blocks = list(cached)
        sequence.num_computed = self._num_computed_by(cached, sequence)
        if sequence.num_preemptions == 0:
            sequence.num_cached = sequence.num_computed
            self.counters.cached_tokens += sequence.num_computed
        self.running.append(sequence)
        sequence.is_running = True
        sequence.blocks += self.pool.allocate(sequence.num_blocks_for(sequence.num_computed + num_new))
        self._take(sequence, num_new, step)

    def _take(self, sequence: Sequence, num_new: int, step: _Step) -> None:
        is_whole = num_new == sequence.num_uncomputed
        step.scheduled.append(ScheduledSequence(sequence, num_new, samples=is_whole))
        step.budget -= num_new
        if not is_whole:
            self.counters.split_prefills += 1
        if num_new > 1 and self.limits.prefix_caching:
            size = self.limits.block_size
            done = sequence.num_computed
            step.hashes_computed.update(sequence.block_hashes()[done // size : (done + num_new) // size])

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """Blocks that already hold this sequence's beginning."""
        if not self.limits.prefix_caching:
            return []
        return self.pool.match(sequence.block_hashes()[: self._num_usable_blocks(sequence)])

    def _num_computed_by(self, cached: list[int], sequence: Sequence) -> int:
        """How many tokens need not be computed. Of the last block, some may be computed again where they are.

        To the same bits, with --batch-invariant, so whoever shares the block does not see it.
        """
        return min(len(cached) * self.limits.block_size, self._num_usable_tokens(sequence))

    def _num_usable_tokens(self, sequence: Sequence) -> int:
        """How many of its tokens may come from others; at least one is left to compute.

        A prompt position whose log-probabilities are wanted must be computed, cached or not.
        """
        usable = sequence.num_tokens - 1
        if sequence.wants_prompt_logprobs:
            usable = min(usable, max(0, sequence.params.prompt_logprobs_start - 1))
        return usable

    def _num_usable_blocks(self, sequence: Sequence) -> int:
        """Full blocks with a usable token."""
        size = self.limits.block_size
        return min(-(-self._num_usable_tokens(sequence) // size), sequence.num_tokens // size)

    def _is_being_computed(self, sequence: Sequence, num_cached_blocks: int, step: _Step) -> bool:
        """Whether the first block that is not cached is computed in this very step, and could be used."""
        return (
            self.limits.prefix_caching
            and num_cached_blocks < self._num_usable_blocks(sequence)
            and sequence.block_hashes()[num_cached_blocks] in step.hashes_computed
        )

    def _remove(self, sequence: Sequence) -> None:
        del self._by_id[sequence.request_id]
        (self.running if sequence.is_running else self._waiting).remove(sequence)
        sequence.is_running = False
        self.pool.release(sequence.blocks)
        sequence.blocks = []


@dataclass
class _Step:
    """One step while it is put together."""

    budget: int
    scheduled: list[ScheduledSequence] = field(default_factory=list)
    hashes_computed: set[BlockHash] = field(default_factory=set)

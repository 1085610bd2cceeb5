"""One step as rank 0 decided it, in a form that travels to the other ranks as one array of int32.

Layout: header [kind, sequences, tokens, block ids, evicted slots, encoded images, their sizes, image spans], then per
sequence [num_new, num_computed, num_blocks, first_logit_row, end_logit_row], token ids, block ids, and what concerns
images.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from server.engine.image_cache import ImageWork
from server.engine.prompt_image import PromptImage
from server.engine.scheduler import ScheduledSequence

Int32Array = NDArray[np.int32]
_HEADER = 8
_PER_SEQUENCE = 5
_PER_ENCODED = 7
_PER_SPAN = 4


class StepKind(IntEnum):
    """RUN: execute the plan. IDLE: nothing to do, a sign of life. STOP: leave the loop. The others: the profiler."""

    RUN = 0
    IDLE = 1
    STOP = 2
    START_PROFILE = 3
    STOP_PROFILE = 4


def _empty(columns: int | None = None) -> Int32Array:
    return np.zeros(0 if columns is None else (0, columns), dtype=np.int32)


@dataclass(frozen=True)
class StepPlan:
    """What every rank executes.

    num_new, num_computed, num_blocks: (S,) per sequence, decode first, each group by falling KV length.
    logit_rows: (S, 2), begin and end within the sequence's new tokens of the rows whose logits are wanted.
    token_ids: (T,). block_ids: the sequences' block tables end to end.
    evicted: slots whose image embeddings go. encoded: (E, 7) images to encode: slot, how many of `imgs_sizes` are its
    own, number of axes, and up to four axes of the pixels, padded with 1. imgs_sizes: (Z, 2) heights and widths of
    patch grids at dynamic resolution, image after image. spans: (I, 4) packed rows that are image tokens: first row,
    number of rows, slot, first of the image's tokens.
    """

    kind: StepKind
    num_new: Int32Array = field(default_factory=_empty)
    num_computed: Int32Array = field(default_factory=_empty)
    num_blocks: Int32Array = field(default_factory=_empty)
    logit_rows: Int32Array = field(default_factory=lambda: _empty(2))
    token_ids: Int32Array = field(default_factory=_empty)
    block_ids: Int32Array = field(default_factory=_empty)
    evicted: Int32Array = field(default_factory=_empty)
    encoded: Int32Array = field(default_factory=lambda: _empty(_PER_ENCODED))
    imgs_sizes: Int32Array = field(default_factory=lambda: _empty(2))
    spans: Int32Array = field(default_factory=lambda: _empty(_PER_SPAN))

    @property
    def num_sequences(self) -> int:
        return len(self.num_new)

    def encode(self) -> Int32Array:
        """The plan as one array."""
        parts = (self.token_ids, self.block_ids, self.evicted, self.encoded, self.imgs_sizes, self.spans)
        header = np.array([self.kind, self.num_sequences, *(len(part) for part in parts)], dtype=np.int32)
        table = np.column_stack((self.num_new, self.num_computed, self.num_blocks, self.logit_rows)).astype(np.int32)
        return np.concatenate((header, table.ravel(), *(part.ravel() for part in parts)))

    @classmethod
    def decode(cls, data: Int32Array) -> StepPlan:
        """Inverse of `encode`; ignores what follows the plan in `data`."""
        kind, sequences, *counts = (int(number) for number in data[:_HEADER])
        widths = (_PER_SEQUENCE, 1, 1, 1, _PER_ENCODED, 2, _PER_SPAN)
        ends = np.cumsum([count * width for count, width in zip((sequences, *counts), widths, strict=True)])
        table, token_ids, block_ids, evicted, encoded, imgs_sizes, spans, _ = np.split(data[_HEADER:], ends)
        table = table.reshape(sequences, _PER_SEQUENCE)
        return cls(
            kind=StepKind(kind),
            num_new=table[:, 0],
            num_computed=table[:, 1],
            num_blocks=table[:, 2],
            logit_rows=table[:, 3:],
            token_ids=token_ids,
            block_ids=block_ids,
            evicted=evicted,
            encoded=encoded.reshape(-1, _PER_ENCODED),
            imgs_sizes=imgs_sizes.reshape(-1, 2),
            spans=spans.reshape(-1, _PER_SPAN),
        )

    @classmethod
    def signal(cls, kind: StepKind) -> StepPlan:
        """A plan without work."""
        return cls(kind)


def order_for_execution(scheduled: Items[ScheduledSequence]) -> list[ScheduledSequence]:
    """Decode first, each group by falling KV length: rows of similar length lie side by side for attention."""
    return sorted(scheduled, key=lambda item: (item.num_new > 1, -(item.sequence.num_computed + item.num_new)))


def build_plan(
    scheduled: Items[ScheduledSequence],
    image_work: ImageWork | None = None,
    slot_of: Callable[[str], int] | None = None,
) -> StepPlan:
    """The plan for sequences in execution order. slot_of: image digest -> slot, where there are images."""
    token_ids: list[int] = []
    block_ids: list[int] = []
    table: list[tuple[int, ...]] = []
    spans: list[tuple[int, ...]] = []
    for item in scheduled:
        sequence = item.sequence
        end = sequence.num_computed + item.num_new
        if slot_of is not None and sequence.images:
            spans += _image_spans(item, len(token_ids), slot_of)
        token_ids += sequence.token_ids[sequence.num_computed : end]
        token_ids += item.guess  # beyond the sequence's own tokens, where the slice ended
        block_ids += sequence.blocks
        table.append((item.num_new, sequence.num_computed, len(sequence.blocks), *_logit_rows(item)))
    columns = np.array(table, dtype=np.int32).reshape(len(scheduled), _PER_SEQUENCE)
    work = image_work or ImageWork()
    encoded = [_encoded_row(slot, image) for slot, image in work.encoded]
    imgs_sizes = [size for _, image in work.encoded for size in image.imgs_sizes]
    return StepPlan(
        kind=StepKind.RUN,
        num_new=columns[:, 0],
        num_computed=columns[:, 1],
        num_blocks=columns[:, 2],
        logit_rows=columns[:, 3:],
        token_ids=np.array(token_ids, dtype=np.int32),
        block_ids=np.array(block_ids, dtype=np.int32),
        evicted=np.array(work.evicted, dtype=np.int32),
        encoded=np.array(encoded, dtype=np.int32).reshape(len(encoded), _PER_ENCODED),
        imgs_sizes=np.array(imgs_sizes, dtype=np.int32).reshape(len(imgs_sizes), 2),
        spans=np.array(spans, dtype=np.int32).reshape(len(spans), _PER_SPAN),
    )


def _logit_rows(item: ScheduledSequence) -> tuple[int, int]:
    """Rows whose logits are wanted: the last own one, if a token follows, guesses, and what predicts wanted tokens."""
    begin = item.num_own - 1 if item.samples else item.num_new
    if item.sequence.wants_prompt_logprobs:
        # Row p predicts token p + 1.
        first = max(item.sequence.params.prompt_logprobs_start - 1, 0) - item.sequence.num_computed
        begin = max(0, min(begin, first))
    return begin, item.num_new


def _image_spans(item: ScheduledSequence, first_row: int, slot_of: Callable[[str], int]) -> list[tuple[int, ...]]:
    begin = item.sequence.num_computed
    end = begin + item.num_new
    spans: list[tuple[int, ...]] = []
    for image in item.sequence.images_within(begin, end):
        low = max(begin, image.first_token)
        high = min(end, image.first_token + image.num_tokens)
        spans.append((first_row + low - begin, high - low, slot_of(image.digest), low - image.first_token))
    return spans


def _encoded_row(slot: int, image: PromptImage) -> tuple[int, ...]:
    shape = image.pixels.shape
    return (slot, len(image.imgs_sizes), len(shape), *shape, *([1] * (4 - len(shape))))

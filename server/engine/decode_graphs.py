"""Decode steps by recorded graphs: a step is filled up to a batch size, copied into buffers, and replayed.

A graph repeats the same kernels on the same memory, so whatever differs between steps must be in that memory: token
ids, positions, slots, lengths and block tables. What the host decides is fixed: the batch size, and a length that no
sequence exceeds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from server.engine.cuda_graphs import GraphRecorder, Replay
from server.engine.decode_batch import decodes_only, padded_to
from server.engine.input_builder import InputArrays, StepInput, input_arrays
from server.engine.input_transfer import PackedLayout, PackedTransfer
from server.engine.step_plan import StepKind, StepPlan


@dataclass(frozen=True)
class DecodeShape:
    """batch_sizes: rising. table_width: blocks of the longest sequence. spare_block: one that no sequence ever has."""

    batch_sizes: tuple[int, ...]
    block_size: int
    table_width: int
    spare_block: int


@dataclass(frozen=True)
class _Recorded:
    """inputs: the memory that the graph reads. replay: runs it."""

    layout: PackedLayout
    inputs: Tensor
    replay: Replay


class DecodeGraphs:
    """One graph for each batch size. All ranks must record, and then run the same plans."""

    def __init__(
        self,
        forward: Callable[[StepInput], Tensor],
        recorder: GraphRecorder,
        transfer: PackedTransfer,
        shape: DecodeShape,
    ) -> None:
        """forward: a step's hidden states (T, hidden), reading nothing of the step on the host but its shapes."""
        self._forward = forward
        self._recorder = recorder
        self._transfer = transfer
        self._shape = shape
        self._recorded: list[_Recorded] = []

    def record(self) -> None:
        """Once, before the first run. The largest goes first: the smaller ones then fit into its memory.

        Raises ConfigurationError where that cannot be done here.
        """
        self._recorded = [self._record(batch_size) for batch_size in reversed(self._shape.batch_sizes)][::-1]

    def serves(self, plan: StepPlan) -> bool:
        """Whether `run` can take it."""
        return decodes_only(plan) and plan.num_sequences <= self._shape.batch_sizes[-1]

    def run(self, plan: StepPlan) -> Tensor:
        """Hidden states (sequences, hidden), in memory that the next run writes to."""
        index = bisect_left(self._shape.batch_sizes, plan.num_sequences)
        recorded = self._recorded[index]
        arrays = self._arrays(plan, self._shape.batch_sizes[index])
        self._transfer.copy(arrays.in_order(), recorded.layout, recorded.inputs)
        return recorded.replay()[: plan.num_sequences]

    def _record(self, batch_size: int) -> _Recorded:
        arrays = self._arrays(StepPlan(StepKind.RUN), batch_size)
        layout = PackedLayout.of(arrays.in_order())
        inputs = self._transfer.allocate(layout)
        self._transfer.copy(arrays.in_order(), layout, inputs)
        step = self._for_any_length(StepInput.of(arrays, layout.views(inputs)))
        return _Recorded(layout, inputs, self._recorder.record(lambda: self._forward(step)))

    def _for_any_length(self, step: StepInput) -> StepInput:
        longest = self._shape.table_width * self._shape.block_size
        sequences = replace(step.metadata.sequences, max_kv_length=longest)
        return replace(step, metadata=replace(step.metadata, sequences=sequences))

    def _arrays(self, plan: StepPlan, batch_size: int) -> InputArrays:
        padded = padded_to(plan, batch_size, self._shape.spare_block)
        return input_arrays(padded, self._shape.block_size, table_width=self._shape.table_width)
